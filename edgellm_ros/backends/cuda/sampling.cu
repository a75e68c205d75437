// Sampling with all state on the device; what is computed is defined in sampling_math.py, and here is how.
//
// Nothing is sorted. Every filter keeps a prefix of the candidates in order, so each of them, and the draw itself, is
// one question: which candidate is the first whose running sum passes a target? ``select`` answers it by narrowing:
// a histogram of the weights over 128 bins in candidate order, then one over the bin where the sum crosses, until so
// few candidates are left that each can add up those before it. Weights are whole numbers (2^-36 of the largest), so
// sums are exact and the same in any order: a draw never depends on how threads were scheduled.

typedef unsigned int uint32;
typedef unsigned long long uint64;

const int THREADS = 1024;      // of pick
const int BINS = 128;
const int COLUMNS = 32;        // copies of the histogram, one a lane, so that lanes never collide
const int FEW = 1024;          // candidates that are left to the last stage
const int LOW_BITS = 18;       // of a weight, summed apart: neither half overflows 32 bits up to 2^19 candidates
const float ONE = 68719476736.0f;  // 2^36, the weight of the largest logit
const uint32 SEEN_IN_PROMPT = 0x80000000u;

enum Flags { PENALISED = 1, BIASED = 2, MASKED = 4, GREEDY = 8, COUNTED = 16 };

struct RowState {  // 56 bytes; the host writes it whole
    double top_p;
    float temperature, min_p, repetition, presence, frequency;
    int top_k;
    uint32 flags;
    uint32 seed_low, seed_high;
    int num_logprobs;
    int position;
};

struct Tables {
    RowState* states;   // [rows]
    uint32* counts;     // [rows, vocabulary]: times generated, and a bit for ids of the prompt
    float* bias;        // [rows, vocabulary]
    uint32* mask;       // [rows, words]
    int vocabulary;
    int words;
};

struct Rows {
    unsigned char row[64];
};

// Order-preserving bits: larger float, larger number. -0 counts as +0.
__device__ __forceinline__ uint32 ordered(float value) {
    const uint32 bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float unordered(uint32 bits) {
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// Ascending in candidate order: descending logit, then ascending id.
__device__ __forceinline__ uint64 candidate(float value, int id) {
    return (uint64)(~ordered(value)) << 32 | (uint32)id;
}

__device__ __forceinline__ bool is_finite(float value) {
    return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}

__device__ __forceinline__ uint64 smaller(uint64 a, uint64 b) { return a < b ? a : b; }

__device__ uint64 warp_smallest(uint64 value) {
    for (int offset = 16; offset; offset >>= 1) value = smaller(value, __shfl_xor_sync(~0u, value, offset));
    return value;
}

// 1. Penalties, bias and mask in place; the best candidate of each block, and whether a raw logit is not finite.

extern "C" __global__ void adjust_logits(
    float* logits, const __grid_constant__ Tables tables, const __grid_constant__ Rows rows, uint64* best, uint32* broken, int chunk) {
    const int index = blockIdx.y, row = rows.row[index], vocabulary = tables.vocabulary;
    const RowState state = tables.states[row];
    float* values = logits + (uint64)index * vocabulary;
    const uint32* counts = tables.counts + (uint64)row * vocabulary;
    const float* bias = tables.bias + (uint64)row * vocabulary;
    const uint32* mask = tables.mask + (uint64)row * tables.words;
    const bool changes = state.flags & (PENALISED | BIASED | MASKED);
    const int end = min(vocabulary, (int)(blockIdx.x + 1) * chunk);
    uint64 smallest = ~0ull;
    bool bad = false;
    for (int id = blockIdx.x * chunk + threadIdx.x; id < end; id += blockDim.x) {
        float value = values[id];
        bad |= !is_finite(value);
        if (changes) {
            if (state.flags & PENALISED) {
                const uint32 count = counts[id];
                if (count) {
                    if (state.repetition != 1.0f)
                        value = value > 0.0f ? __fdiv_rn(value, state.repetition) : __fmul_rn(value, state.repetition);
                    const float generated = (float)(count & ~SEEN_IN_PROMPT);
                    if (generated > 0.0f && (state.presence != 0.0f || state.frequency != 0.0f))
                        value = __fsub_rn(__fsub_rn(value, state.presence), __fmul_rn(state.frequency, generated));
                }
            }
            if (state.flags & BIASED) value = __fadd_rn(value, bias[id]);
            if ((state.flags & MASKED) && !(mask[id >> 5] >> (id & 31) & 1u)) value = -__int_as_float(0x7f800000);
            values[id] = value;
        }
        smallest = smaller(smallest, candidate(value, id));
    }
    __shared__ uint64 partial[32];
    smallest = warp_smallest(smallest);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = smallest;
    const int any = __syncthreads_or(bad);
    if (threadIdx.x < 32) {
        smallest = warp_smallest(threadIdx.x < (blockDim.x >> 5) ? partial[threadIdx.x] : ~0ull);
        if (threadIdx.x == 0) {
            best[index * gridDim.x + blockIdx.x] = smallest;
            broken[index * gridDim.x + blockIdx.x] = any;
        }
    }
}

// 2. The pick.

struct Shared {
    uint32 low[BINS][COLUMNS];
    uint32 high[BINS][COLUMNS];
    uint32 count[BINS][COLUMNS];
};

struct Shortlist {
    uint64 candidates[FEW];
    uint64 weights[FEW];
};

struct Search {
    const float* values;
    int vocabulary;
    float largest, temperature, bins_per_unit;
    uint64 last;    // candidates behind this one are left out
    bool counting;  // every weight is 1
};

struct Found {
    uint64 candidate;
    uint64 through;  // sum up to it, itself included
};

__device__ __forceinline__ uint64 weight_of(const Search& search, float value) {
    if (search.counting) return 1;
    return __float2ull_rn(expf(__fdiv_rn(value - search.largest, search.temperature)) * ONE);
}

// The bin of a candidate at a level, given that it lies in the chosen bins of the levels before. Levels 0 and 1 cut
// the distance from the largest logit evenly, later ones are seven more bits of the candidate each.
__device__ __forceinline__ int bin_of(const Search& search, int level, float value, uint64 item) {
    if (level >= 2) {
        const int shift = 64 - 7 * (level - 1);
        return (shift >= 0 ? item >> shift : item << -shift) & (BINS - 1);
    }
    const float distance = (search.largest - value) * search.bins_per_unit;
    if (!(distance < (float)(BINS - 1))) return level ? 0 : BINS - 1;
    const int bin = (int)distance;
    return level ? (int)((distance - (float)bin) * (float)BINS) : bin;
}

__device__ uint64 block_sum(uint64 value, uint64* scratch) {
    for (int offset = 16; offset; offset >>= 1) value += __shfl_xor_sync(~0u, value, offset);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = value;
    __syncthreads();
    value = scratch[threadIdx.x & 31];
    for (int offset = 16; offset; offset >>= 1) value += __shfl_xor_sync(~0u, value, offset);
    return value;
}

// The first candidate whose running sum exceeds ``target``; the sum of all must exceed it.
__device__ Found select(const Search& search, uint64 target, Shared* shared, uint64* scratch) {
    const int lane = threadIdx.x & 31;
    __shared__ int path[12];
    __shared__ uint64 before, bin_sum[BINS];
    __shared__ uint32 bin_count[BINS], taken;
    __shared__ Found found;
    __syncthreads();
    if (threadIdx.x == 0) {
        before = 0;
        found.candidate = ~0ull;
        found.through = 0;
    }
    for (int level = 0;; ++level) {
        uint32* cells = &shared->low[0][0];
        for (int cell = threadIdx.x; cell < 3 * BINS * COLUMNS; cell += THREADS) cells[cell] = 0;
        __syncthreads();
        for (int id = threadIdx.x; id < search.vocabulary; id += THREADS) {
            const float value = search.values[id];
            const uint64 item = candidate(value, id);
            bool inside = item <= search.last;
            for (int earlier = 0; inside && earlier < level; ++earlier)
                inside = bin_of(search, earlier, value, item) == path[earlier];
            if (!inside) continue;
            const uint64 weight = weight_of(search, value);
            const int bin = bin_of(search, level, value, item);
            atomicAdd(&shared->low[bin][lane], (uint32)weight & ((1u << LOW_BITS) - 1));
            atomicAdd(&shared->high[bin][lane], (uint32)(weight >> LOW_BITS));
            atomicAdd(&shared->count[bin][lane], 1u);
        }
        __syncthreads();
        if (threadIdx.x < BINS) {
            uint64 low = 0, high = 0;
            uint32 count = 0;
            for (int step = 0; step < COLUMNS; ++step) {
                const int column = (step + threadIdx.x) & (COLUMNS - 1);
                low += shared->low[threadIdx.x][column];
                high += shared->high[threadIdx.x][column];
                count += shared->count[threadIdx.x][column];
            }
            bin_sum[threadIdx.x] = low + (high << LOW_BITS);
            bin_count[threadIdx.x] = count;
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            // Four bins a lane: where does the running sum pass the target?
            uint64 own = 0;
            for (int part = 0; part < 4; ++part) own += bin_sum[lane * 4 + part];
            uint64 running = own;
            for (int offset = 1; offset < 32; offset <<= 1) {
                const uint64 other = __shfl_up_sync(~0u, running, offset);
                if (lane >= offset) running += other;
            }
            const uint64 start = before;
            const uint32 passed = __ballot_sync(~0u, start + running > target);
            if (lane == (passed ? __ffs(passed) - 1 : 31)) {
                uint64 sum = start + running - own;
                int bin = lane * 4;
                for (int part = 0; part < 3 && sum + bin_sum[bin] <= target; ++part) sum += bin_sum[bin++];
                path[level] = bin;
                before = sum;
                taken = 0;
            }
        }
        __syncthreads();
        if (bin_count[path[level]] <= FEW || level == 11) {
            Shortlist* list = (Shortlist*)shared;
            for (int id = threadIdx.x; id < search.vocabulary; id += THREADS) {
                const float value = search.values[id];
                const uint64 item = candidate(value, id);
                bool inside = item <= search.last;
                for (int earlier = 0; inside && earlier <= level; ++earlier)
                    inside = bin_of(search, earlier, value, item) == path[earlier];
                if (!inside) continue;
                const uint32 slot = atomicAdd(&taken, 1u);
                list->candidates[slot] = item;
                list->weights[slot] = weight_of(search, value);
            }
            __syncthreads();
            const int count = taken;
            if (threadIdx.x < count) {
                const uint64 own = list->candidates[threadIdx.x], weight = list->weights[threadIdx.x];
                uint64 sum = before;
                for (int other = 0; other < count; ++other)
                    if (list->candidates[other] < own) sum += list->weights[other];
                if (sum <= target && target < sum + weight) {
                    found.candidate = own;
                    found.through = sum + weight;
                }
            }
            __syncthreads();
            return found;
        }
    }
}

__device__ float uniform(uint32 low, uint32 high, uint32 position) {
    uint32 c0 = position, c1 = 0, c2 = 0, c3 = 0, k0 = low, k1 = high;
    for (int round = 0; round < 10; ++round) {
        const uint32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (float)(c0 >> 8) * 5.9604644775390625e-8f;
}

__device__ int draw(const float* values, int vocabulary, const RowState& state, float largest, Shared* shared,
                    uint64* scratch) {
    Search search{values, vocabulary, largest, state.temperature, __fdiv_rn(8.0f, state.temperature), ~0ull, false};
    if (state.top_k > 0 && state.top_k < vocabulary) {
        search.counting = true;
        search.last = select(search, state.top_k - 1, shared, scratch).candidate;
        search.counting = false;
    }
    uint64 total = 0, likely = 0;
    for (int id = threadIdx.x; id < vocabulary; id += THREADS) {
        if (candidate(values[id], id) > search.last) continue;
        const float share = expf(__fdiv_rn(values[id] - largest, state.temperature));
        const uint64 weight = __float2ull_rn(share * ONE);
        total += weight;
        if (share >= state.min_p) likely += weight;
    }
    total = block_sum(total, scratch);
    likely = block_sum(likely, scratch);
    uint64 kept = state.min_p > 0.0f ? likely : total;
    if (state.top_p < 1.0) {
        const uint64 share = (uint64)ceil(state.top_p * (double)total);
        const uint64 through = select(search, share ? min(share, total) - 1 : 0, shared, scratch).through;
        kept = smaller(kept, through);
    }
    const double number = (double)uniform(state.seed_low, state.seed_high, (uint32)state.position);
    const uint64 target = smaller((uint64)(number * (double)kept), kept - 1);
    return (int)(uint32)select(search, target, shared, scratch).candidate;
}

// Chosen token first, then the most likely, as (id, log probability); ``ranked_*`` [n, limit + 1].
__device__ void rank(const float* values, int vocabulary, int token, float largest, int wanted, int* ids,
                     float* logs, uint64* scratch) {
    __shared__ double sums[32];
    double sum = 0.0;
    for (int id = threadIdx.x; id < vocabulary; id += THREADS) sum += (double)expf(values[id] - largest);
    for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(~0u, sum, offset);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0.0;
    for (int warp = 0; warp < THREADS / 32; ++warp) sum += sums[warp];
    const double normaliser = (double)largest + log(sum);
    if (threadIdx.x == 0) {
        ids[0] = token;
        logs[0] = (float)((double)values[token] - normaliser);
    }
    uint64 previous = 0;
    for (int place = 1; place <= wanted; ++place) {
        uint64 next = ~0ull;
        for (int id = threadIdx.x; id < vocabulary; id += THREADS) {
            const uint64 item = candidate(values[id], id);
            if (place == 1 || item > previous) next = smaller(next, item);
        }
        next = warp_smallest(next);
        __syncthreads();
        if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = next;
        __syncthreads();
        previous = warp_smallest(scratch[threadIdx.x & 31]);
        if (threadIdx.x == 0) {
            const int id = previous == ~0ull ? -1 : (int)(uint32)previous;
            const bool usable = id >= 0 && is_finite(values[id]);
            ids[place] = usable ? id : -1;
            logs[place] = usable ? (float)((double)values[id] - normaliser) : 0.0f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(1024) pick(
    const float* logits, const __grid_constant__ Tables tables, const __grid_constant__ Rows rows, const uint64* best, const uint32* broken, int blocks,
    int* token_ids, int* ranked_ids, float* ranked_logs, int limit) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ uint64 scratch[32];
    const int index = blockIdx.x, row = rows.row[index];
    const RowState state = tables.states[row];
    const float* values = logits + (uint64)index * tables.vocabulary;
    int* ids = ranked_ids + (uint64)index * (limit + 1);
    uint64 smallest = ~0ull;
    bool bad = false;
    for (int block = threadIdx.x; block < blocks; block += THREADS) {
        smallest = smaller(smallest, best[index * blocks + block]);
        bad |= broken[index * blocks + block] != 0;
    }
    smallest = warp_smallest(smallest);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = smallest;
    const int any = __syncthreads_or(bad);
    smallest = warp_smallest(scratch[threadIdx.x & 31]);
    const float largest = unordered(~(uint32)(smallest >> 32));
    int token = (int)(uint32)smallest;
    if (any || !is_finite(largest)) {
        if (threadIdx.x == 0) {
            token_ids[index] = -1;
            ids[0] = -1;
        }
        return;
    }
    if (!(state.flags & GREEDY)) token = draw(values, tables.vocabulary, state, largest, (Shared*)memory, scratch);
    if (state.num_logprobs > 0)
        rank(values, tables.vocabulary, token, largest, min(state.num_logprobs, limit), ids,
             ranked_logs + (uint64)index * (limit + 1), scratch);
    if (threadIdx.x == 0) {
        token_ids[index] = token;
        if (state.flags & COUNTED) tables.counts[(uint64)row * tables.vocabulary + token] += 1;
        tables.states[row].position = state.position + 1;
    }
}

// Row state from the host: mark ids of a prompt, set biases.

extern "C" __global__ void mark_prompt(uint32* counts, const int* ids, int count, int vocabulary) {
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count && ids[index] >= 0 && ids[index] < vocabulary) counts[ids[index]] = SEEN_IN_PROMPT;
}

extern "C" __global__ void set_bias(float* bias, const int* ids, const float* values, int count) {
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) bias[ids[index]] = values[index];
}

// Sampling, third kernel: the token of each row, and its log probabilities where they are asked for.

const int THREADS = 1024;
const int COLUMNS = 32;        // copies of the histogram, one a lane, so that lanes never collide
const int FEW = 1024;          // candidates that are left to the last stage
const int LEVELS = 12;
const int AHEAD = 8;           // loads that a thread has under way in a pass over a row

struct Histogram {
    uint32 low[BINS][COLUMNS];
    uint32 high[BINS][COLUMNS];
    uint32 count[BINS][COLUMNS];
};

struct Shortlist {
    uint64 candidates[FEW];
    uint64 weights[FEW];
};

struct Work {
    uint64 mass[BINS];
    uint32 count[BINS];
    int path[LEVELS];
    uint64 mass_before;
    uint32 count_before, taken;
    uint64 candidate, mass_through;
};

__device__ __forceinline__ bool lies_in(const Search& search, const Work& work, int levels, float value, uint64 item) {
    for (int level = 0; level < levels; ++level)
        if (bin_of(search, level, value, item) != work.path[level]) return false;
    return true;
}

// A pass of the whole block over a row, with several loads under way.
template <typename Action>
__device__ __forceinline__ void for_each(const Search& search, Action action) {
    int id = threadIdx.x;
    for (; id + (AHEAD - 1) * THREADS < search.vocabulary; id += AHEAD * THREADS) {
        float values[AHEAD];
#pragma unroll
        for (int part = 0; part < AHEAD; ++part) values[part] = search.values[id + part * THREADS];
#pragma unroll
        for (int part = 0; part < AHEAD; ++part) action(values[part], id + part * THREADS);
    }
    for (; id < search.vocabulary; id += THREADS) action(search.values[id], id);
}

// Sums of the bins of ``level``, into ``work``.
__device__ void histogram(const Search& search, Work& work, int level, Histogram* cells) {
    const int lane = threadIdx.x & 31;
    uint32* all = &cells->low[0][0];
    for (int cell = threadIdx.x; cell < 3 * BINS * COLUMNS; cell += THREADS) all[cell] = 0;
    __syncthreads();
    for_each(search, [&](float value, int id) {
        const uint64 item = candidate(value, id);
        if (!lies_in(search, work, level, value, item)) return;
        const uint64 weight = weight_of(search.shares[id]);
        const int bin = bin_of(search, level, value, item);
        atomicAdd(&cells->low[bin][lane], (uint32)weight & ((1u << LOW_BITS) - 1));
        atomicAdd(&cells->high[bin][lane], (uint32)(weight >> LOW_BITS));
        atomicAdd(&cells->count[bin][lane], 1u);
    });
    __syncthreads();
    if (threadIdx.x < BINS) {
        uint64 low = 0, high = 0;
        uint32 count = 0;
        for (int step = 0; step < COLUMNS; ++step) {
            const int column = (step + threadIdx.x) & (COLUMNS - 1);
            low += cells->low[threadIdx.x][column];
            high += cells->high[threadIdx.x][column];
            count += cells->count[threadIdx.x][column];
        }
        work.mass[threadIdx.x] = low + (high << LOW_BITS);
        work.count[threadIdx.x] = count;
    }
    __syncthreads();
}

// One warp: the bin where the running sum passes the target becomes the next of the path.
__device__ void choose_bin(Work& work, int level, bool counting, uint64 target) {
    const int lane = threadIdx.x & 31;
    uint64 mass = 0;
    uint32 count = 0;
    for (int part = 0; part < 4; ++part) {  // four bins a lane
        mass += work.mass[lane * 4 + part];
        count += work.count[lane * 4 + part];
    }
    const uint64 own_mass = mass;
    const uint32 own_count = count;
    for (int offset = 1; offset < 32; offset <<= 1) {
        const uint64 other_mass = __shfl_up_sync(~0u, mass, offset);
        const uint32 other_count = __shfl_up_sync(~0u, count, offset);
        if (lane >= offset) {
            mass += other_mass;
            count += other_count;
        }
    }
    mass += work.mass_before;
    count += work.count_before;
    __syncwarp();
    const uint32 passed = __ballot_sync(~0u, (counting ? count : mass) > target);
    if (lane == (passed ? __ffs(passed) - 1 : 31)) {
        mass -= own_mass;
        count -= own_count;
        int bin = lane * 4;
        for (int part = 0; part < 3; ++part) {
            const uint64 sum = counting ? (uint64)count + work.count[bin] : mass + work.mass[bin];
            if (sum > target) break;
            mass += work.mass[bin];
            count += work.count[bin];
            ++bin;
        }
        work.path[level] = bin;
        work.mass_before = mass;
        work.count_before = count;
        work.taken = 0;
    }
}

// The first candidate whose running sum (of weights, or of ones) exceeds ``target``; the sum of all must exceed it.
// Leaves it, and the sum of the weights up to it, in ``work``.
__device__ __noinline__ void select(
    const Search& search, const Exchange& exchange, bool counting, uint64 target, Work& work, void* memory) {
    __syncthreads();
    if (threadIdx.x < BINS) {
        work.mass[threadIdx.x] = exchange.mass[threadIdx.x];
        work.count[threadIdx.x] = exchange.count[threadIdx.x];
    }
    if (threadIdx.x == 0) work.mass_before = work.count_before = 0;
    __syncthreads();
    int level = 0;
    for (;; ++level) {
        if (threadIdx.x < 32) choose_bin(work, level, counting, target);
        __syncthreads();
        if (work.count[work.path[level]] <= FEW || level == LEVELS - 1) break;
        histogram(search, work, level + 1, (Histogram*)memory);
    }
    Shortlist* list = (Shortlist*)memory;
    for_each(search, [&](float value, int id) {
        const uint64 item = candidate(value, id);
        if (!lies_in(search, work, level + 1, value, item)) return;
        const uint32 slot = atomicAdd(&work.taken, 1u);
        if (slot < FEW) {
            list->candidates[slot] = item;
            list->weights[slot] = weight_of(search.shares[id]);
        }
    });
    __syncthreads();
    const uint32 count = min(work.taken, (uint32)FEW);
    if (threadIdx.x < count) {
        const uint64 own = list->candidates[threadIdx.x], weight = list->weights[threadIdx.x];
        uint64 mass = work.mass_before, before = work.count_before;
        for (int other = 0; other < count; ++other) {
            if (list->candidates[other] >= own) continue;
            mass += list->weights[other];
            before += 1;
        }
        const uint64 sum = counting ? before : mass, step = counting ? 1 : weight;
        if (sum <= target && target < sum + step) {
            work.candidate = own;
            work.mass_through = mass + weight;
        }
    }
    __syncthreads();
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

__device__ int draw(const Search& search, const Exchange& exchange, const RowState& state, Work& work, void* memory) {
    uint64 total = 0;
    for (int bin = 0; bin < BINS; ++bin) total += exchange.mass[bin];
    if (state.top_k > 0 && state.top_k < search.vocabulary) {
        select(search, exchange, true, state.top_k - 1, work, memory);
        total = work.mass_through;
    }
    uint64 kept = state.min_p > 0.0f ? smaller(total, exchange.likely) : total;
    if (state.top_p < 1.0) {
        const uint64 share = (uint64)ceil(state.top_p * (double)total);
        select(search, exchange, false, share ? smaller(share, total) - 1 : 0, work, memory);
        kept = smaller(kept, work.mass_through);
    }
    const double number = (double)uniform(state.seed_low, state.seed_high, (uint32)state.position);
    select(search, exchange, false, smaller((uint64)(number * (double)kept), kept - 1), work, memory);
    return (int)(uint32)work.candidate;
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

extern "C" __global__ void __launch_bounds__(1024, 1) pick(
    const float* logits, const __grid_constant__ Tables tables, const __grid_constant__ Rows rows,
    const __grid_constant__ Scratch scratch, int blocks, int* token_ids, int* ranked_ids, float* ranked_logs,
    int limit) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ uint64 partial[32];
    __shared__ Work work;
    __shared__ Exchange exchange;
    const int index = blockIdx.x, row = rows.row[index], vocabulary = tables.vocabulary;
    const RowState state = tables.states[row];
    const float* values = logits + (uint64)index * vocabulary;
    int* ids = ranked_ids + (uint64)index * (limit + 1);
    bool usable;
    const uint64 first = first_candidate(scratch, index, blocks, partial, &usable);
    if (!usable) {
        if (threadIdx.x == 0) {
            token_ids[index] = -1;
            ids[0] = -1;
        }
        return;
    }
    int token = (int)(uint32)first;
    if (!(state.flags & GREEDY)) {
        const uint32* from = (const uint32*)(scratch.exchange + index);
        uint32* to = (uint32*)&exchange;
        for (int cell = threadIdx.x; cell < sizeof(Exchange) / 4; cell += THREADS) to[cell] = from[cell];
        __syncthreads();
        const float* shares = scratch.shares + (uint64)index * vocabulary;
        token = draw(search_of(values, shares, vocabulary, state, first), exchange, state, work, memory);
    }
    if (state.num_logprobs > 0)
        rank(values, vocabulary, token, unordered(~(uint32)(first >> 32)), min(state.num_logprobs, limit), ids,
             ranked_logs + (uint64)index * (limit + 1), partial);
    if (threadIdx.x == 0) {
        token_ids[index] = token;
        if (state.flags & COUNTED) tables.counts[(uint64)row * vocabulary + token] += 1;
        tables.states[row].position = state.position + 1;
    }
}

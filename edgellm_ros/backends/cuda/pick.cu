// Sampling, third kernel: the token of each row, and its log probabilities where they are asked for.

// Bins that hold an answer, whatever the filters before it leave exactly; empty where the question is not asked.
struct Section {
    Place first, last;
    bool asked;
};

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

// What is asked, in order: the last candidate that top-k keeps, that top-p keeps, and the one that is drawn. Bounds of
// the answers, which ``ask`` gives for bounds of the target, stay bounds through all of it.
struct Draw {
    int top_k;
    double top_p, number;
    uint64 likely;  // weights that min-p lets through, or all

    __device__ uint64 top_p_target(uint64 total) const {
        const uint64 share = (uint64)ceil(top_p * (double)total);
        return share ? smaller(share, total) - 1 : 0;
    }
    __device__ uint64 drawn_target(uint64 kept) const { return smaller((uint64)(number * (double)kept), kept - 1); }
};

__device__ Section ask(const Bins& bins, bool counting, uint64 low, uint64 high, Work& work) {
    Section section{find(bins, counting, low, work), {}, true};
    section.last = low == high ? section.first : find(bins, counting, high, work);
    return section;
}

__device__ void plan(const Bins& bins, const Draw& draw, uint64 total, Section* sections, Work& work) {
    uint64 low = total, high = total;
    if (sections[TOP_K].asked) {
        sections[TOP_K] = ask(bins, true, draw.top_k - 1, draw.top_k - 1, work);
        low = larger(sections[TOP_K].first.mass_before, 1);
        high = sections[TOP_K].first.mass_through;
    }
    uint64 kept_low = smaller(low, draw.likely), kept_high = smaller(high, draw.likely);
    if (sections[TOP_P].asked) {
        sections[TOP_P] = ask(bins, false, draw.top_p_target(low), draw.top_p_target(high), work);
        kept_low = smaller(kept_low, larger(sections[TOP_P].first.mass_before, 1));
        kept_high = smaller(kept_high, sections[TOP_P].last.mass_through);
    }
    sections[DRAWN] = ask(bins, false, draw.drawn_target(kept_low), draw.drawn_target(kept_high), work);
}

template <typename Select>
__device__ int answer(const Draw& draw, uint64 total, const Section* sections, Select select) {
    if (sections[TOP_K].asked) total = select(TOP_K, true, draw.top_k - 1).mass_through;
    uint64 kept = smaller(total, draw.likely);
    if (sections[TOP_P].asked) kept = smaller(kept, select(TOP_P, false, draw.top_p_target(total)).mass_through);
    return (int)(uint32)select(DRAWN, false, draw.drawn_target(kept)).item;
}

__device__ int answer_from_list(
    const Search& search, const Draw& draw, uint64 total, const Section* sections, uint64* list, int count,
    Work& work) {
    const Bins bins = bins_of_list(search, list, count, 0, 0, work);
    uint64 mass = bins.mass_before;
    for (int part = 0; part < PARTS; ++part) {
        const int place = bins.first + part;
        if (place < count) {
            const int bin = bin_of(search, value_of(list[place]));
            const int before = place ? bin_of(search, value_of(list[place - 1])) : -1;
            for (int question = 0; question < QUESTIONS; ++question) {
                const int first = sections[question].first.number;
                if (sections[question].asked && before < first && first <= bin) {
                    work.start[question].count_before = place;
                    work.start[question].mass_before = mass;
                }
            }
        }
        mass += bins.mass[part];
    }
    return answer(draw, total, sections, [&](int question, bool counting, uint64 target) {
        __syncthreads();
        const Place &there = sections[question].first, &here = work.start[question];
        target = counting ? target - there.count_before + here.count_before
                          : target - there.mass_before + here.mass_before;
        const uint64 moved = there.mass_before - here.mass_before;
        const Place place = find(bins, counting, target, work);
        return Answer{list[place.number], place.mass_through + moved};
    });
}

// Puts the block's candidates of the sections on the row's list.
__device__ void put_on_list(
    const Search& search, const Section* sections, const float* own, int start, uint64* list, uint32* listed) {
    for (int part = 0; part < PARTS; ++part) {
        const int id = start + part * THREADS;
        if (id >= search.vocabulary) break;
        const int bin = bin_of(search, own[part]);
        bool wanted = false;
        for (int question = 0; question < QUESTIONS; ++question)
            wanted |= sections[question].asked && sections[question].first.number <= bin &&
                      bin <= sections[question].last.number;
        if (wanted && weight_of(share_of(search, own[part]))) {
            const uint32 slot = atomicAdd(listed, 1u);
            if (slot < LIST) list[slot] = candidate(own[part], id);
        }
    }
}

// The token that a row draws; -1 for every block but the one that is done last.
__device__ int draw_token(
    const Search& search, const RowState& state, Exchange* exchange, uint64* row_list, void* memory, Work& work) {
    const int start = blockIdx.x * (THREADS * PARTS) + threadIdx.x;
    float own[PARTS];
    for (int part = 0; part < PARTS; ++part)
        own[part] = start + part * THREADS < search.vocabulary ? search.values[start + part * THREADS] : 0.0f;
    const Bins bins = bins_of_row(exchange, work);
    __syncthreads();
    if (threadIdx.x == THREADS - 1) {
        work.place.mass_through = bins.mass_before;
        work.place.count_through = bins.count_before;
        for (int part = 0; part < PARTS; ++part) {
            work.place.mass_through += bins.mass[part];
            work.place.count_through += bins.count[part];
        }
    }
    __syncthreads();
    const uint64 total = work.place.mass_through;
    const uint32 count = work.place.count_through;
    const Draw draw{state.top_k, state.top_p, uniform(state.seed_low, state.seed_high, (uint32)state.position),
                    state.min_p > 0.0f ? exchange->likely : total};
    Section sections[QUESTIONS] = {};
    sections[TOP_K].asked = state.top_k > 0 && state.top_k < count;
    sections[TOP_P].asked = state.top_p < 1.0;
    plan(bins, draw, total, sections, work);
    uint32 most = 0;
    for (int question = 0; question < QUESTIONS; ++question)
        most += sections[question].last.count_through - sections[question].first.count_before;
    if (most <= LIST) put_on_list(search, sections, own, start, row_list, &exchange->listed);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) work.last = atomicAdd(&exchange->finished, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!work.last) return -1;
    __threadfence();
    if (most > LIST)
        return answer(draw, total, sections, [&](int, bool counting, uint64 target) {
            return narrow(search, bins, counting, target, memory, work);
        });
    uint64* list = (uint64*)memory;
    const int listed = (int)__ldcg(&exchange->listed);
    for (int slot = threadIdx.x; slot < listed; slot += THREADS) list[slot] = __ldcg(row_list + slot);
    return answer_from_list(search, draw, total, sections, list, listed, work);
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

// Grid: (blocks of a row, rows). ``first_blocks`` is the number of blocks of the first kernel.

extern "C" __global__ void __launch_bounds__(1024, 1) pick(
    const float* logits, const __grid_constant__ Tables tables, const __grid_constant__ Rows rows,
    const __grid_constant__ Scratch scratch, int first_blocks, int* token_ids, int* ranked_ids, float* ranked_logs,
    int limit) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ Work work;
    const int index = blockIdx.y, row = rows.row[index], vocabulary = tables.vocabulary;
    const RowState state = tables.states[row];
    const bool greedy = state.flags & GREEDY;
    if (greedy && blockIdx.x) return;
    const float* values = logits + (uint64)index * vocabulary;
    int* ids = ranked_ids + (uint64)index * (limit + 1);
    bool usable;
    const uint64 first = first_candidate(scratch, index, first_blocks, work.sums, &usable);
    if (!usable) {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            token_ids[index] = -1;
            ids[0] = -1;
        }
        return;
    }
    int token = (int)(uint32)first;
    if (!greedy) {
        const Search search = search_of(values, vocabulary, state, first);
        token = draw_token(search, state, scratch.exchange + index, scratch.list + (uint64)index * LIST, memory, work);
        if (token < 0) return;
    }
    if (state.num_logprobs > 0)
        rank(values, vocabulary, token, unordered(~(uint32)(first >> 32)), min(state.num_logprobs, limit), ids,
             ranked_logs + (uint64)index * (limit + 1), work.sums);
    if (threadIdx.x == 0) {
        token_ids[index] = token;
        if (state.flags & COUNTED) tables.counts[(uint64)row * vocabulary + token] += 1;
        tables.states[row].position = state.position + 1;
    }
}

// Sampling, first and second kernel: what many blocks do to a row, and the state that the host sets.

// 1. Penalties, bias and mask in place; the best candidate of each block, and whether a raw logit is not finite.

extern "C" __global__ void adjust_logits(
    float* logits, const __grid_constant__ Tables tables, const __grid_constant__ Rows rows,
    const __grid_constant__ Scratch scratch, int chunk) {
    const int index = blockIdx.y, row = rows.row[index], vocabulary = tables.vocabulary;
    const RowState state = tables.states[row];
    float* values = logits + (uint64)index * vocabulary;
    const uint32* counts = tables.counts + (uint64)row * vocabulary;
    const float* bias = tables.bias + (uint64)row * vocabulary;
    const uint32* mask = tables.mask + (uint64)row * tables.words;
    const bool changes = state.flags & (PENALISED | BIASED | MASKED);
    const int end = min(vocabulary, (int)(blockIdx.x + 1) * chunk);
    if (!(state.flags & GREEDY)) {
        uint32* cells = (uint32*)(scratch.exchange + index);
        for (int cell = blockIdx.x * blockDim.x + threadIdx.x; cell < sizeof(Exchange) / 4;
             cell += gridDim.x * blockDim.x)
            cells[cell] = 0;
    }
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
            scratch.best[index * gridDim.x + blockIdx.x] = smallest;
            scratch.broken[index * gridDim.x + blockIdx.x] = any;
        }
    }
}

// 2. Weights and their sums in bins, for rows that draw. ``blocks`` is the number of blocks of the first kernel.

extern "C" __global__ void __launch_bounds__(1024, 1) weigh(
    const float* logits, const __grid_constant__ Tables tables, const __grid_constant__ Rows rows,
    const __grid_constant__ Scratch scratch, int blocks) {
    const int index = blockIdx.y, vocabulary = tables.vocabulary;
    const RowState state = tables.states[rows.row[index]];
    if (state.flags & GREEDY) return;
    __shared__ uint64 partial[32];
    __shared__ uint32 low[BINS], high[BINS], count[BINS / 2];  // two counts a number
    const float* values = logits + (uint64)index * vocabulary;
    const int start = blockIdx.x * (THREADS * PARTS) + threadIdx.x;
    float own[PARTS];
    for (int part = 0; part < PARTS; ++part)
        own[part] = start + part * THREADS < vocabulary ? values[start + part * THREADS] : 0.0f;
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) low[bin] = high[bin] = count[bin / 2] = 0;
    bool usable;
    const uint64 first = first_candidate(scratch, index, blocks, partial, &usable);
    if (!usable) return;
    const Search search = search_of(values, vocabulary, state, first);
    uint64 likely = 0;
    for (int part = 0; part < PARTS; ++part) {
        const float share = share_of(search, own[part]);
        const uint64 weight = start + part * THREADS < vocabulary ? weight_of(share) : 0;
        if (weight == 0) continue;
        const int bin = bin_of(search, own[part]);
        if (share >= state.min_p) likely += weight;
        atomicAdd(&low[bin], (uint32)weight & ((1u << LOW_BITS) - 1));
        atomicAdd(&high[bin], (uint32)(weight >> LOW_BITS));
        atomicAdd(&count[bin / 2], bin & 1 ? 1u << 16 : 1u);
    }
    for (int offset = 16; offset; offset >>= 1) likely += __shfl_xor_sync(~0u, likely, offset);
    Exchange* exchange = scratch.exchange + index;
    if ((threadIdx.x & 31) == 0 && likely) atomicAdd(&exchange->likely, likely);
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
        const uint32 found = count[bin / 2] >> (bin & 1 ? 16 : 0) & 0xffffu;
        if (found == 0) continue;
        atomicAdd(&exchange->mass[bin], (uint64)low[bin] + ((uint64)high[bin] << LOW_BITS));
        atomicAdd(&exchange->count[bin], found);
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

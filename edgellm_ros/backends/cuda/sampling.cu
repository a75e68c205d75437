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
    if (blockIdx.x == 0) {
        uint32* cells = (uint32*)(scratch.exchange + index);
        for (int cell = threadIdx.x; cell < sizeof(Exchange) / 4; cell += blockDim.x) cells[cell] = 0;
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

// 2. Weights and their histogram, for rows that draw.

extern "C" __global__ void weigh(
    const float* logits, const __grid_constant__ Tables tables, const __grid_constant__ Rows rows,
    const __grid_constant__ Scratch scratch, int chunk) {
    const int index = blockIdx.y, vocabulary = tables.vocabulary;
    const RowState state = tables.states[rows.row[index]];
    if (state.flags & GREEDY) return;
    __shared__ uint64 partial[32];
    __shared__ uint32 low[BINS], high[BINS], count[BINS];
    bool usable;
    const uint64 first = first_candidate(scratch, index, gridDim.x, partial, &usable);
    if (!usable) return;
    const float* values = logits + (uint64)index * vocabulary;
    float* shares = scratch.shares + (uint64)index * vocabulary;
    const Search search = search_of(values, shares, vocabulary, state, first);
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) low[bin] = high[bin] = count[bin] = 0;
    __syncthreads();
    uint64 likely = 0;
    const int end = min(vocabulary, (int)(blockIdx.x + 1) * chunk);
    for (int id = blockIdx.x * chunk + threadIdx.x; id < end; id += blockDim.x) {
        const float value = values[id];
        const float share = expf(__fdiv_rn(value - search.largest, state.temperature));
        const uint64 weight = weight_of(share);
        const int bin = bin_of(search, 0, value, 0);
        shares[id] = share;
        if (share >= state.min_p) likely += weight;
        atomicAdd(&low[bin], (uint32)weight & ((1u << LOW_BITS) - 1));
        atomicAdd(&high[bin], (uint32)(weight >> LOW_BITS));
        atomicAdd(&count[bin], 1u);
    }
    for (int offset = 16; offset; offset >>= 1) likely += __shfl_xor_sync(~0u, likely, offset);
    Exchange* exchange = scratch.exchange + index;
    if ((threadIdx.x & 31) == 0 && likely) atomicAdd(&exchange->likely, likely);
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
        if (count[bin] == 0) continue;
        atomicAdd(&exchange->mass[bin], (uint64)low[bin] + ((uint64)high[bin] << LOW_BITS));
        atomicAdd(&exchange->count[bin], count[bin]);
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

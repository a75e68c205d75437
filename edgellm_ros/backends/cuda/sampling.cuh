// Sampling with all state on the device; what is computed is defined in sampling_math.py, and here is how.
//
// Every filter keeps a prefix of the candidates in order, so each of them, and the draw itself, is one question: which
// candidate is the first whose running sum passes a target? Three kernels answer it, each over many blocks a row:
//
// adjust_logits  penalties, bias and mask; the best candidate of each block.
// weigh          the weight of every candidate, summed in bins that stand in candidate order.
// pick           from the sums, which bins hold the answers (a filter's bounds bound those behind it); their candidates
//                go on a list, and the block that is done last sorts it and answers exactly. Where too many are alike
//                for the list, that block narrows the bins by itself.
//
// Weights are whole numbers (2^-36 of the largest), so sums are exact and the same in any order: a draw never depends
// on how threads were scheduled. A weight that rounds to nothing takes no part. This file stands before sampling.cu and
// pick.cu when they are compiled.

typedef unsigned int uint32;
typedef unsigned long long uint64;

const int THREADS = 1024;      // of a block of the last two kernels
const int PARTS = 4;           // logits, bins or listed candidates of each of its threads
const int BINS = THREADS * PARTS;
const float BINS_PER_UNIT = 160.0f;  // of (largest logit - logit) / temperature: weights end at 25.6
const int LIST = BINS;         // candidates that a list holds
const int LOW_BITS = 18;       // of a weight, summed apart: neither half overflows 32 bits up to 2^19 candidates
const float ONE = 68719476736.0f;  // 2^36, the weight of the largest logit
const uint32 SEEN_IN_PROMPT = 0x80000000u;

enum Flags { PENALISED = 1, BIASED = 2, MASKED = 4, GREEDY = 8, COUNTED = 16 };

struct RowState {  // the host writes it whole
    double top_p;
    float temperature, min_p, repetition, presence, frequency;
    int top_k;
    uint32 flags;
    uint32 seed_low, seed_high;
    int num_logprobs;
    int position;
};
static_assert(sizeof(RowState) == 56, "the host packs it so");

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

// What the blocks of one draw tell each other.
struct Exchange {
    uint64 mass[BINS];   // weights
    uint32 count[BINS];  // candidates that have one
    uint64 likely;       // weights that min-p lets through
    uint32 listed;       // candidates on the list
    uint32 finished;     // blocks that have put theirs there
};
static_assert(sizeof(Exchange) == 49168, "the host reserves so much");

struct Scratch {
    uint64* best;        // [draws, blocks]: the first candidate of each block
    uint32* broken;      // [draws, blocks]: whether a raw logit is not finite
    Exchange* exchange;  // [draws]
    uint64* list;        // [draws, LIST]
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

// The first candidate of a row, and whether the row is usable; the same for every block of the row.
__device__ uint64 first_candidate(const Scratch& scratch, int index, int blocks, uint64* partial, bool* usable) {
    uint64 smallest = ~0ull;
    bool bad = false;
    for (int block = threadIdx.x; block < blocks; block += blockDim.x) {
        smallest = smaller(smallest, scratch.best[index * blocks + block]);
        bad |= scratch.broken[index * blocks + block] != 0;
    }
    smallest = warp_smallest(smallest);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = smallest;
    const int any = __syncthreads_or(bad);
    const int lane = threadIdx.x & 31;
    smallest = warp_smallest(lane < (blockDim.x >> 5) ? partial[lane] : ~0ull);
    *usable = !any && is_finite(unordered(~(uint32)(smallest >> 32)));
    return smallest;
}

struct Search {
    const float* values;
    int vocabulary;
    float largest, temperature, bins_per_unit;
};

__device__ __forceinline__ Search search_of(const float* values, int vocabulary, const RowState& state, uint64 first) {
    return Search{values, vocabulary, unordered(~(uint32)(first >> 32)), state.temperature,
                  __fdiv_rn(BINS_PER_UNIT, state.temperature)};
}

__device__ __forceinline__ float share_of(const Search& search, float value) {
    return expf(__fdiv_rn(value - search.largest, search.temperature));
}

__device__ __forceinline__ uint64 weight_of(float share) { return __float2ull_rn(share * ONE); }

__device__ __forceinline__ int bin_of(const Search& search, float value) {
    const float distance = (search.largest - value) * search.bins_per_unit;
    return distance < (float)BINS ? (int)distance : BINS - 1;
}

// Sampling with all state on the device; what is computed is defined in sampling_math.py, and here is how.
//
// Nothing is sorted. Every filter keeps a prefix of the candidates in order, so each of them, and the draw itself, is
// one question: which candidate is the first whose running sum passes a target? ``select`` answers it by narrowing:
// a histogram over 128 bins in candidate order, then one over the bin where the sum crosses, until so few candidates
// are left that each can add up those before it. Weights are whole numbers (2^-36 of the largest), so sums are exact
// and the same in any order: a draw never depends on how threads were scheduled.
//
// Three kernels: ``adjust_logits`` and ``weigh`` (sampling.cu) share a row among many blocks, ``pick`` (pick.cu) has one
// block a row. This file stands before each of the two when they are compiled.

typedef unsigned int uint32;
typedef unsigned long long uint64;

const int BINS = 128;
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
    uint64 mass[BINS];   // weights by level-0 bin
    uint64 likely;       // weights that min-p lets through
    uint32 count[BINS];
};
static_assert(sizeof(Exchange) == 1544, "the host reserves so much");

struct Scratch {
    uint64* best;        // [draws, blocks]: the first candidate of each block
    uint32* broken;      // [draws, blocks]: whether a raw logit is not finite
    Exchange* exchange;  // [draws]
    float* shares;       // [draws, vocabulary]: weight / largest weight
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
    const float* shares;
    int vocabulary;
    float largest, bins_per_unit;
};

__device__ __forceinline__ Search search_of(
    const float* values, const float* shares, int vocabulary, const RowState& state, uint64 first) {
    return Search{values, shares, vocabulary, unordered(~(uint32)(first >> 32)), __fdiv_rn(8.0f, state.temperature)};
}

__device__ __forceinline__ uint64 weight_of(float share) { return __float2ull_rn(share * ONE); }

// The bin of a candidate at a level, given that it lies in the chosen bins of the levels before. Levels 0 and 1 cut
// the distance from the largest logit evenly, later ones are seven more bits of the candidate each.
__device__ __forceinline__ int bin_of(const Search& search, int level, float value, uint64 item) {
    if (level >= 2) {
        const int shift = 64 - 7 * (level - 1);
        return (int)((shift >= 0 ? item >> shift : item << 6) & (BINS - 1));
    }
    const float distance = (search.largest - value) * search.bins_per_unit;
    if (!(distance < (float)(BINS - 1))) return level ? 0 : BINS - 1;
    const int bin = (int)distance;
    return level ? (int)((distance - (float)bin) * (float)BINS) : bin;
}

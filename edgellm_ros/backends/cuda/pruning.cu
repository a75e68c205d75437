// The choice of visual tokens, by the rule of token_selection.py. Four kernels, one after another:
//
// row_measures   magnitude and norm of each row. Sums are made in an order that depends on the width alone, so that
//                equal rows have equal measures.
// choose_pivots  the rows of largest magnitude: of each span, and of the text.
// pivot_cosines  what each row of a span is ranked by, for each of its pivots.
// choose_rows    each pivot's share in turn, and the places of all rows that stay, ascending.
//
// Magnitudes and cosines become whole numbers that ascend with the rank. Above the number of its place, one makes an
// item: no two items are equal, and of equal values the lower place comes first.

typedef unsigned char uint8;
typedef unsigned int uint32;
typedef unsigned long long uint64;

const int CHOOSERS = 1024;    // threads of a block that chooses
const int MOST_PIVOTS = 64;   // of a span's own, and of the text's
const int DIGIT_BITS = 8;     // of an item that one pass looks at
const int DIGITS = 1 << DIGIT_BITS;
const uint64 NOBODY = ~0ull;  // an item of a row that is not to be chosen
const uint32 ALL = ~0u;       // lanes

struct Span {      // the host writes it
    int start, stop;
    int quota;     // rows to keep, no more than there are; 0 where nothing tells which
    int answer;    // where its first row stands among the places
};

struct Pivots {    // the host packs it; of span s: own[s * MOST_PIVOTS ...], then those of the text
    int* rows;     // [spans + 1, MOST_PIVOTS]
    int spans;
    int most_own;  // of a span, when its quota allows
    int text;

    __device__ int own(const Span& span) const { return min(most_own, span.quota); }
    __device__ int count(const Span& span) const { return own(span) + text; }
    __device__ int row(int number, const Span& span, int index) const {
        const int first = own(span);
        return index < first ? rows[number * MOST_PIVOTS + index] : rows[spans * MOST_PIVOTS + index - first];
    }
};

__device__ __forceinline__ float warp_sum(float value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(ALL, value, distance);
    return value;
}

// Whole numbers in the order of the values; both zeros are one value, and there must be no NaN.
__device__ __forceinline__ uint32 ordered(float value) {
    const uint32 bits = value == 0.0f ? 0u : __float_as_uint(value);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The number of the span that a row lies in, or ``count`` for text.
__device__ int span_of(const Span* spans, int count, int row) {
    int low = 0, high = count;  // the first span that ends behind the row
    while (low < high) {
        const int middle = (low + high) / 2;
        if (spans[middle].stop <= row) low = middle + 1;
        else high = middle;
    }
    return low < count && spans[low].start <= row ? low : count;
}

// Ranks by magnitude, Euclidean norms and spans of all rows. Grid: (rows); 256 threads.

extern "C" __global__ void row_measures(
    const float* rows, const Span* spans, uint32* ranks, float* norms, int* owners, int width, int count) {
    __shared__ float sums[2][8];
    const float* row = rows + (uint64)blockIdx.x * width;
    float magnitude = 0.0f, square = 0.0f;
    for (int column = threadIdx.x; column < width; column += blockDim.x) {
        magnitude += fabsf(row[column]);
        square += row[column] * row[column];
    }
    magnitude = warp_sum(magnitude);
    square = warp_sum(square);
    if (threadIdx.x % 32 == 0) {
        sums[0][threadIdx.x / 32] = magnitude;
        sums[1][threadIdx.x / 32] = square;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        magnitude = square = 0.0f;
        for (int warp = 0; warp < 8; ++warp) {
            magnitude += sums[0][warp];
            square += sums[1][warp];
        }
        ranks[blockIdx.x] = magnitude >= 0.0f ? ordered(-magnitude) : ordered(__uint_as_float(0x7f800000u));
        norms[blockIdx.x] = sqrtf(square);
        owners[blockIdx.x] = span_of(spans, count, blockIdx.x);
    }
}

// What a block works with while it chooses.
struct Work {
    uint32 bins[DIGITS];
    int digit;               // of the bin that holds the last item to choose
    uint32 before, through;  // items in the bins before it, and with it
    uint32 sums[CHOOSERS / 32];
    uint64 items[MOST_PIVOTS];
    uint32 listed;
};

// Which items are chosen: those whose upper bits are ``prefix`` or less.
struct Bound {
    uint64 prefix;
    int shift;
    __device__ bool holds(uint64 item) const { return item != NOBODY && item >> shift <= prefix; }
};

__device__ __forceinline__ uint32 warp_sums(uint32 value) {
    for (int distance = 1; distance < 32; distance <<= 1) {
        const uint32 other = __shfl_up_sync(ALL, value, distance);
        if (threadIdx.x % 32 >= distance) value += other;
    }
    return value;
}

// Puts the bin of the item number ``wanted`` (from 1), among all that the bins count, into ``work``. One warp.
__device__ void find_digit(Work& work, uint32 wanted) {
    const int each = DIGITS / 32, first = threadIdx.x * each;
    uint32 sum = 0;
    for (int part = 0; part < each; ++part) sum += work.bins[first + part];
    uint32 through = warp_sums(sum) - sum;
    for (int part = 0; part < each; ++part) {
        const uint32 before = through;
        through += work.bins[first + part];
        if (before < wanted && wanted <= through) {
            work.digit = first + part;
            work.before = before;
            work.through = through;
        }
    }
}

// The bound of the ``wanted`` smallest of ``item_of(0 .. count)``, at least one and no more than there are. Digits of
// the last item to choose are found from above, until everything that has them is to be chosen.
template <typename ItemOf>
__device__ Bound smallest(uint32 wanted, int count, Work& work, ItemOf item_of) {
    uint64 prefix = 0;
    for (int shift = 64 - DIGIT_BITS;; shift -= DIGIT_BITS) {
        if (threadIdx.x < DIGITS) work.bins[threadIdx.x] = 0;
        __syncthreads();
        for (int start = 0; start < count; start += CHOOSERS) {  // whole warps, so that lanes can be matched
            const int place = start + threadIdx.x;
            const uint64 item = place < count ? item_of(place) : NOBODY;
            const uint64 digits = item >> shift;
            const bool here = item != NOBODY && digits >> DIGIT_BITS == prefix;
            const int digit = here ? (int)(digits % DIGITS) : DIGITS;
            const uint32 alike = __match_any_sync(ALL, digit);
            if (here && __ffs(alike) - 1 == threadIdx.x % 32) atomicAdd(&work.bins[digit], (uint32)__popc(alike));
        }
        __syncthreads();
        if (threadIdx.x < 32) find_digit(work, wanted);
        __syncthreads();
        prefix = prefix << DIGIT_BITS | work.digit;
        if (work.through == wanted || shift == 0) return Bound{prefix, shift};
        wanted -= work.before;
    }
}

// Grid: (spans + 1), the last block for the text. Largest first.

extern "C" __global__ void __launch_bounds__(CHOOSERS) choose_pivots(
    const uint32* ranks, const int* owners, const Span* spans, Pivots pivots, int length) {
    __shared__ Work work;
    const int number = blockIdx.x;
    const Span span = number < pivots.spans ? spans[number] : Span{0, length, 0, 0};
    const int wanted = number < pivots.spans ? pivots.own(span) : pivots.text;
    if (!wanted) return;
    const auto item_of = [&](int place) {
        const int row = span.start + place;
        return owners[row] == number ? (uint64)ranks[row] << 32 | place : NOBODY;
    };
    if (threadIdx.x == 0) work.listed = 0;
    const Bound bound = smallest(wanted, span.stop - span.start, work, item_of);
    for (int place = threadIdx.x; place < span.stop - span.start; place += CHOOSERS) {
        const uint64 item = item_of(place);
        if (bound.holds(item)) work.items[atomicAdd(&work.listed, 1u)] = item;
    }
    __syncthreads();
    if (threadIdx.x < wanted) {
        const uint64 item = work.items[threadIdx.x];
        int rank = 0;
        for (int other = 0; other < wanted; ++other) rank += work.items[other] < item;
        pivots.rows[number * MOST_PIVOTS + rank] = span.start + (int)(uint32)item;
    }
}

// ranks[p][i] of row i by its cosine to pivot p of its span; what is no number, or endless, is less wanted than any
// cosine. Grid: (rows); a warp a pivot.

extern "C" __global__ void pivot_cosines(
    const float* rows, const float* norms, const int* owners, const Span* spans, Pivots pivots, uint32* ranks,
    int width) {
    const int place = blockIdx.x, number = owners[place];
    if (number == pivots.spans) return;
    const Span span = spans[number];
    const float* row = rows + (uint64)place * width;
    for (int index = threadIdx.x / 32; index < pivots.count(span); index += blockDim.x / 32) {
        const int pivot = pivots.row(number, span, index);
        const float* other = rows + (uint64)pivot * width;
        float product = 0.0f;
        for (int column = threadIdx.x % 32; column < width; column += 32) product += row[column] * other[column];
        product = warp_sum(product);
        if (threadIdx.x % 32 == 0) {
            const float norm = norms[place] * norms[pivot];
            const float cosine = product / (norm < 1e-8f ? 1e-8f : norm);  // fmaxf would hide a NaN
            ranks[(uint64)index * gridDim.x + place] = ordered(cosine <= 2.0f ? cosine : 2.0f);
        }
    }
}

// Writes the places of all rows that stay: a block those of its span and of the text before it, the last block the
// text behind it too. ``ranks`` [pivots, length]; ``chosen`` [length] is scratch. Grid: (spans).

extern "C" __global__ void __launch_bounds__(CHOOSERS) choose_rows(
    const uint32* ranks, const Span* spans, Pivots pivots, uint8* chosen, int* answer, int length) {
    __shared__ Work work;
    const int number = blockIdx.x;
    const Span span = spans[number];
    const int count = span.stop - span.start, own = pivots.own(span), all = pivots.count(span);
    chosen += span.start;
    for (int place = threadIdx.x; place < count; place += CHOOSERS) chosen[place] = 0;
    __syncthreads();
    if (threadIdx.x < own) chosen[pivots.row(number, span, threadIdx.x) - span.start] = 1;
    __syncthreads();
    int left = span.quota - own;
    for (int index = 0; index < all && left; ++index) {
        const uint32* ranked = ranks + (uint64)index * length + span.start;
        const auto item_of = [&](int place) { return chosen[place] ? NOBODY : (uint64)ranked[place] << 32 | place; };
        const int share = (left + all - index - 1) / (all - index);
        const Bound bound = smallest(share, count, work, item_of);
        for (int place = threadIdx.x; place < count; place += CHOOSERS)  // a thread's places are always the same
            if (bound.holds(item_of(place))) chosen[place] = 1;
        left -= share;
    }
    int next = span.answer;
    for (int start = 0; start < count; start += CHOOSERS) {
        const int place = start + threadIdx.x;
        const bool stays = place < count && chosen[place];
        const uint32 lanes = __ballot_sync(ALL, stays);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        __syncthreads();
        if (lane == 0) work.sums[warp] = __popc(lanes);
        __syncthreads();
        const uint32 sums = warp_sums(work.sums[lane]);
        const uint32 before = __shfl_sync(ALL, sums, warp) - work.sums[warp];
        if (stays) answer[next + before + __popc(lanes & ((1u << lane) - 1))] = span.start + place;
        next += __shfl_sync(ALL, sums, 31);
    }
    const int behind = number ? spans[number - 1].stop : 0;
    for (int row = behind + threadIdx.x; row < span.start; row += CHOOSERS) answer[span.answer + row - span.start] = row;
    if (number + 1 < pivots.spans) return;
    for (int row = span.stop + threadIdx.x; row < length; row += CHOOSERS)
        answer[span.answer + span.quota + row - span.stop] = row;
}

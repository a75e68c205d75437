// Which candidate is the first whose running sum passes a target: among bins, in a list, in a whole row. The whole block
// works on it. This file stands between sampling.cuh and pick.cu when they are compiled.

const int CELLS = 128;         // bins of a histogram that narrows one of the bins of the row
const int COLUMNS = 32;        // copies of it, one a lane, so that lanes never collide
const int AHEAD = 8;           // loads that a thread has under way in a pass over a row

struct Histogram {
    uint32 low[CELLS][COLUMNS];
    uint32 high[CELLS][COLUMNS];
    uint32 count[CELLS][COLUMNS];
};

// A bin or a listed candidate, and the sums before it and through it.
struct Place {
    int number;
    uint32 count_before, count_through;
    uint64 mass_before, mass_through;
};

// A thread's own of all bins or of a sorted list, and the sums before them.
struct Bins {
    int first;
    uint32 count[PARTS], count_before;
    uint64 mass[PARTS], mass_before;
};

struct Answer {
    uint64 item, mass_through;
};

enum Questions { TOP_K, TOP_P, DRAWN, QUESTIONS };

struct Work {
    uint64 sums[THREADS / 32];
    Place place;
    Place start[QUESTIONS];  // first listed candidate of a question's section, in sums over the list
    uint32 listed;
    bool last;
};

__device__ __forceinline__ uint64 larger(uint64 a, uint64 b) { return a < b ? b : a; }

__device__ uint64 warp_sums(uint64 value) {
    for (int offset = 1; offset < 32; offset <<= 1) {
        const uint64 other = __shfl_up_sync(~0u, value, offset);
        if ((threadIdx.x & 31) >= offset) value += other;
    }
    return value;
}

// Sum of the values of all threads before this one.
__device__ uint64 sum_before(uint64 value, Work& work) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint64 sum = warp_sums(value);
    __syncthreads();
    if (lane == 31) work.sums[warp] = sum;
    __syncthreads();
    const uint64 warps = warp_sums(work.sums[lane]);
    return __shfl_sync(~0u, warps, warp) - work.sums[warp] + sum - value;
}

// Fills in the sums before a thread's own; ``before`` is added to them.
__device__ void add_up(Bins& bins, uint64 mass_before, uint32 count_before, Work& work) {
    uint64 mass = 0;
    uint32 count = 0;
    for (int part = 0; part < PARTS; ++part) {
        mass += bins.mass[part];
        count += bins.count[part];
    }
    bins.mass_before = mass_before + sum_before(mass, work);
    bins.count_before = count_before + (uint32)sum_before(count, work);
}

// The first place whose running sum (of weights, or of ones) exceeds ``target``; the sum of all must exceed it.
__device__ Place find(const Bins& bins, bool counting, uint64 target, Work& work) {
    uint64 mass = bins.mass_before;
    uint32 count = bins.count_before;
    __syncthreads();
    for (int part = 0; part < PARTS; ++part) {
        const Place place{bins.first + part, count, count + bins.count[part], mass, mass + bins.mass[part]};
        mass = place.mass_through;
        count = place.count_through;
        const uint64 before = counting ? place.count_before : place.mass_before;
        if (before <= target && target < (counting ? (uint64)count : mass)) work.place = place;
    }
    __syncthreads();
    return work.place;
}

__device__ Bins bins_of_row(const Exchange* exchange, Work& work) {
    Bins bins;
    bins.first = threadIdx.x * PARTS;
    for (int part = 0; part < PARTS; ++part) {
        bins.mass[part] = exchange->mass[bins.first + part];
        bins.count[part] = exchange->count[bins.first + part];
    }
    add_up(bins, 0, 0, work);
    return bins;
}

// Ascending. Pairs up to 32 apart are a warp's own.
__device__ void sort(uint64* list, int count) {
    int size = 64;
    while (size < count) size <<= 1;
    for (int slot = count + threadIdx.x; slot < size; slot += THREADS) list[slot] = ~0ull;
    __syncthreads();
    for (int length = 2; length <= size; length <<= 1) {
        for (int stride = length >> 1; stride; stride >>= 1) {
            if (stride >= 32) __syncthreads();
            else __syncwarp();
            for (int pair = threadIdx.x; pair < size / 2; pair += THREADS) {
                const int left = 2 * pair - (pair & (stride - 1)), right = left + stride;
                const uint64 a = list[left], b = list[right];
                if ((a > b) == !(left & length)) {
                    list[left] = b;
                    list[right] = a;
                }
            }
        }
    }
    __syncthreads();
}

__device__ __forceinline__ float value_of(uint64 item) { return unordered(~(uint32)(item >> 32)); }

// Sorts a list; each of its candidates is a bin then.
__device__ Bins bins_of_list(
    const Search& search, uint64* list, int count, uint64 mass_before, uint32 count_before, Work& work) {
    sort(list, count);
    Bins bins;
    bins.first = threadIdx.x * PARTS;
    for (int part = 0; part < PARTS; ++part) {
        const bool there = bins.first + part < count;
        bins.mass[part] = there ? weight_of(share_of(search, value_of(list[bins.first + part]))) : 0;
        bins.count[part] = there;
    }
    add_up(bins, mass_before, count_before, work);
    return bins;
}

// A pass of the whole block over the candidates of a row that have a weight, with several loads under way.
template <typename Action>
__device__ __forceinline__ void for_each(const Search& search, Action action) {
    for (int start = threadIdx.x; start < search.vocabulary; start += AHEAD * THREADS) {
        float values[AHEAD];
#pragma unroll
        for (int part = 0; part < AHEAD; ++part) {
            const int id = start + part * THREADS;
            values[part] = id < search.vocabulary ? search.values[id] : -__int_as_float(0x7f800000);
        }
#pragma unroll
        for (int part = 0; part < AHEAD; ++part) {
            const uint64 weight = weight_of(share_of(search, values[part]));
            if (weight) action(values[part], candidate(values[part], start + part * THREADS), weight);
        }
    }
}

__device__ uint64 block_smallest(uint64 value, Work& work) {
    value = warp_smallest(value);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) work.sums[threadIdx.x >> 5] = value;
    __syncthreads();
    return warp_smallest(work.sums[threadIdx.x & 31]);
}

// Bins of equal width, 2 ** ``shift``, over the candidates from ``low`` to ``high``.
__device__ Bins histogram(
    const Search& search, uint64 low, uint64 high, int shift, const Place& parent, Histogram* cells, Work& work) {
    const int lane = threadIdx.x & 31;
    uint32* all = &cells->low[0][0];
    __syncthreads();
    for (int cell = threadIdx.x; cell < 3 * CELLS * COLUMNS; cell += THREADS) all[cell] = 0;
    __syncthreads();
    for_each(search, [&](float, uint64 item, uint64 weight) {
        if (item < low || item > high) return;
        const int cell = (int)((item - low) >> shift);
        atomicAdd(&cells->low[cell][lane], (uint32)weight & ((1u << LOW_BITS) - 1));
        atomicAdd(&cells->high[cell][lane], (uint32)(weight >> LOW_BITS));
        atomicAdd(&cells->count[cell][lane], 1u);
    });
    __syncthreads();
    Bins bins{};
    bins.first = threadIdx.x;
    if (threadIdx.x < CELLS) {
        uint64 low_sum = 0, high_sum = 0;
        for (int step = 0; step < COLUMNS; ++step) {
            const int column = (step + threadIdx.x) & (COLUMNS - 1);
            low_sum += cells->low[threadIdx.x][column];
            high_sum += cells->high[threadIdx.x][column];
            bins.count[0] += cells->count[threadIdx.x][column];
        }
        bins.mass[0] = low_sum + (high_sum << LOW_BITS);
    }
    add_up(bins, parent.mass_before, parent.count_before, work);
    return bins;
}

// The answer by passes over the whole row, for bins with more candidates than a list holds.
__device__ __noinline__ Answer narrow(
    const Search& search, const Bins& bins, bool counting, uint64 target, void* memory, Work& work) {
    Place place = find(bins, counting, target, work);
    uint64 low = ~0ull, high = 0;
    for_each(search, [&](float value, uint64 item, uint64) {
        if (bin_of(search, value) != place.number) return;
        low = smaller(low, item);
        high = larger(high, item);
    });
    low = block_smallest(low, work);
    high = ~block_smallest(~high, work);
    while (place.count_through - place.count_before > LIST) {
        int shift = 0;
        while ((high - low) >> shift >= CELLS) ++shift;
        place = find(histogram(search, low, high, shift, place, (Histogram*)memory, work), counting, target, work);
        low += (uint64)place.number << shift;
        high = smaller(high, low + ((1ull << shift) - 1));
    }
    uint64* list = (uint64*)memory;
    if (threadIdx.x == 0) work.listed = 0;
    __syncthreads();
    for_each(search, [&](float, uint64 item, uint64) {
        if (item < low || item > high) return;
        const uint32 slot = atomicAdd(&work.listed, 1u);
        if (slot < LIST) list[slot] = item;
    });
    __syncthreads();
    const int count = place.count_through - place.count_before;
    place = find(bins_of_list(search, list, count, place.mass_before, place.count_before, work), counting, target, work);
    return Answer{list[place.number], place.mass_through};
}

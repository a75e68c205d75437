// Measures for the choice of visual tokens: see token_selection.py. Sums are made in an order that depends on the width
// alone, so that equal rows have equal measures.

typedef unsigned long long uint64;

__device__ __forceinline__ float warp_sum(float value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    return value;
}

// Sum of magnitudes and Euclidean norm of each row. Grid: (rows); 256 threads.

extern "C" __global__ void row_measures(const float* rows, float* magnitudes, float* norms, int width) {
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
        magnitudes[blockIdx.x] = magnitude;
        norms[blockIdx.x] = sqrtf(square);
    }
}

// cosines[i][p] of row places[i] and row pivots[i's span][p]; a pivot below 0 is none. Grid: (places); a warp a pivot.

extern "C" __global__ void pivot_cosines(
    const float* rows, const float* norms, const int* places, const int* spans, const int* pivots, float* cosines,
    int width, int count) {
    const int place = places[blockIdx.x];
    const float* row = rows + (uint64)place * width;
    for (int index = threadIdx.x / 32; index < count; index += blockDim.x / 32) {
        const int pivot = pivots[(uint64)spans[blockIdx.x] * count + index];
        if (pivot < 0) continue;
        const float* other = rows + (uint64)pivot * width;
        float product = 0.0f;
        for (int column = threadIdx.x % 32; column < width; column += 32) product += row[column] * other[column];
        product = warp_sum(product);
        if (threadIdx.x % 32 == 0)
            cosines[(uint64)blockIdx.x * count + index] = product / fmaxf(norms[place] * norms[pivot], 1e-8f);
    }
}

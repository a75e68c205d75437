// Images of bytes. ``resample`` is one pass of a resize along the middle axis, in the whole numbers that Pillow uses;
// neighbouring threads have neighbouring bytes, so reads of a row lie side by side. ``rearrange`` puts bytes in another
// order, as bytes or as numbers: cutting into tiles or patches is nothing else. ``letterbox`` blends four bytes into a
// number, in the order of OpenCV's sums: neighbouring threads write neighbouring columns of each of three planes.

typedef unsigned char uint8;
typedef unsigned int uint32;
typedef unsigned long long uint64;

const int FRACTION_BITS = 22;

extern "C" __global__ void resample(
    const uint8* source, const int* first, const int* weights, uint8* out, int length, int new_length, int inner,
    int taps, uint32 count) {
    const uint32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const uint32 within = index % inner, row = index / inner;
    const uint32 place = row % new_length, outer = row / new_length;
    const uint8* from = source + (uint64)outer * length * inner + within;
    const int* weight = weights + (uint64)place * taps;
    int sum = 1 << (FRACTION_BITS - 1);
    const int start = first[place];
    for (int tap = 0; tap < taps; ++tap) {
        const int at = start + tap < length ? start + tap : length - 1;
        sum += weight[tap] * (int)from[(uint64)at * inner];
    }
    sum >>= FRACTION_BITS;
    out[index] = (uint8)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

struct Order {
    int sizes[8];    // the last axis varies fastest; those in front that are not used are 1
    int strides[8];  // of the source
};

template <typename Number>
__device__ __forceinline__ void rearranged(const uint8* source, Number* out, Order order, uint32 count) {
    const uint32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    uint32 rest = index;
    uint64 at = 0;
    for (int axis = 7; axis >= 0; --axis) {
        at += (uint64)(rest % order.sizes[axis]) * order.strides[axis];
        rest /= order.sizes[axis];
    }
    out[index] = (Number)source[at];
}

extern "C" __global__ void rearrange_bytes(const uint8* source, uint8* out, Order order, uint32 count) {
    rearranged(source, out, order, count);
}

extern "C" __global__ void rearrange_numbers(const uint8* source, float* out, Order order, uint32 count) {
    rearranged(source, out, order, count);
}

__device__ __forceinline__ float between(float low, float high, float share) {
    return low * (1.0f - share) + high * share;
}

extern "C" __global__ void letterbox(
    const uint8* source, const int* first_line, const float* line_share, const int* first_column,
    const float* column_share, float* out, int source_height, int source_width, int top, int left, int down,
    int across, int height, int width) {
    const uint32 index = blockIdx.x * blockDim.x + threadIdx.x, plane = (uint32)height * width;
    if (index >= plane) return;
    const int line = (int)(index / width) - top, column = (int)(index % width) - left;
    float levels[3] = {0.0f, 0.0f, 0.0f};  // black where the picture is not
    if (line >= 0 && line < down && column >= 0 && column < across) {
        const int upper = first_line[line], before = first_column[column];
        const int lower = upper + 1 < source_height ? upper + 1 : source_height - 1;
        const int after = before + 1 < source_width ? before + 1 : source_width - 1;
        const uint8* upper_line = source + (uint64)upper * source_width * 3;
        const uint8* lower_line = source + (uint64)lower * source_width * 3;
        const float down_share = line_share[line], across_share = column_share[column];
        for (int channel = 0; channel < 3; ++channel) {
            const int low = before * 3 + channel, high = after * 3 + channel;
            levels[channel] = between(
                between((float)upper_line[low], (float)upper_line[high], across_share),
                between((float)lower_line[low], (float)lower_line[high], across_share), down_share);
        }
    }
    for (int channel = 0; channel < 3; ++channel)
        out[(uint64)channel * plane + index] = levels[channel] * (float)(2.0 / 255.0) - 1.0f;
}

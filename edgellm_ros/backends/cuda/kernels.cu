// Small kernels around an engine. No header is included, so that the run-time compiler needs nothing beside itself.
// Compiled without contraction of a * b + c, so that the NumPy twins give the same bits wherever they can.

typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef unsigned long long uint64;

__device__ __forceinline__ float half_to_float(uint16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ float bfloat_to_float(uint16 bits) {
    return __uint_as_float((uint32)bits << 16);
}

// Embeddings: out[position] = scale * table[ids[position]]; an id outside the vocabulary gives zeros.
// One block a position. ``row_scales`` is for int8 tables alone.

template <typename Load>
__device__ __forceinline__ void gather(const int* ids, float* out, int vocabulary, int width, float scale, Load load) {
    const int id = ids[blockIdx.x];
    float* row = out + (uint64)blockIdx.x * width;
    const bool known = id >= 0 && id < vocabulary;
    for (int column = threadIdx.x; column < width; column += blockDim.x)
        row[column] = known ? load((uint64)id * width + column, id) * scale : 0.0f;
}

extern "C" __global__ void gather_float32(
    const float* table, const float*, const int* ids, float* out, int vocabulary, int width, float scale) {
    gather(ids, out, vocabulary, width, scale, [=](uint64 at, int) { return table[at]; });
}

extern "C" __global__ void gather_float16(
    const uint16* table, const float*, const int* ids, float* out, int vocabulary, int width, float scale) {
    gather(ids, out, vocabulary, width, scale, [=](uint64 at, int) { return half_to_float(table[at]); });
}

extern "C" __global__ void gather_bfloat16(
    const uint16* table, const float*, const int* ids, float* out, int vocabulary, int width, float scale) {
    gather(ids, out, vocabulary, width, scale, [=](uint64 at, int) { return bfloat_to_float(table[at]); });
}

extern "C" __global__ void gather_int8(
    const signed char* table, const float* row_scales, const int* ids, float* out, int vocabulary, int width,
    float scale) {
    gather(ids, out, vocabulary, width, scale,
           [=](uint64 at, int id) { return (float)table[at] * row_scales[id]; });
}

// Rows of ``bytes`` bytes, a multiple of 4. gather_rows: out[m] = source[rows[m]], zeros for a row outside.
// splice_rows: out[rows[m]] = source[m], nothing for a row outside.

extern "C" __global__ void gather_rows(const uint32* source, const int* rows, uint32* out, int source_rows, int words) {
    const int row = rows[blockIdx.x];
    const bool known = row >= 0 && row < source_rows;
    for (int word = threadIdx.x; word < words; word += blockDim.x)
        out[(uint64)blockIdx.x * words + word] = known ? source[(uint64)row * words + word] : 0u;
}

extern "C" __global__ void splice_rows(const uint32* source, const int* rows, uint32* out, int out_rows, int words) {
    const int row = rows[blockIdx.x];
    if (row < 0 || row >= out_rows) return;
    for (int word = threadIdx.x; word < words; word += blockDim.x)
        out[(uint64)row * words + word] = source[(uint64)blockIdx.x * words + word];
}

// Rotary tables: cosine, sine [n, half] of n positions; one block a position.

extern "C" __global__ void rope_tables(
    const int* positions, const float* frequencies, float* cosine, float* sine, int half, float scale) {
    const float position = (float)positions[blockIdx.x];
    for (int index = threadIdx.x; index < half; index += blockDim.x) {
        const float angle = position * frequencies[index];
        const uint64 at = (uint64)blockIdx.x * half + index;
        cosine[at] = cosf(angle) * scale;
        sine[at] = sinf(angle) * scale;
    }
}

// State of a recorded step: ``amount`` is added to every element of up to four int32 arrays.

struct Arrays {
    int* first[4];
    int count[4];
};

extern "C" __global__ void advance(Arrays arrays, int amount) {
    for (int array = 0; array < 4; ++array)
        for (int index = threadIdx.x; index < arrays.count[array]; index += blockDim.x)
            arrays.first[array][index] += amount;
}

// Action chunks: state += step * velocity.

extern "C" __global__ void euler_step(float* state, const float* velocity, float step, int count) {
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) state[index] = state[index] + step * velocity[index];
}

// Caches. A table of copies, each of ``segments`` pieces of ``bytes`` bytes (a multiple of 2) at constant strides.
// Grid: (pieces, copies). Serves row moves, export and import of blocks, and packing of a batch.

struct SegmentCopy {
    const uint8* source;
    uint8* destination;
    uint64 source_stride;
    uint64 destination_stride;
    uint64 bytes;
    uint64 segments;
};

extern "C" __global__ void copy_segments(const SegmentCopy* table) {
    const SegmentCopy copy = table[blockIdx.y];
    for (uint64 segment = blockIdx.x; segment < copy.segments; segment += gridDim.x) {
        const uint8* from = copy.source + segment * copy.source_stride;
        uint8* to = copy.destination + segment * copy.destination_stride;
        const uint64 alignment = (uint64)from | (uint64)to | copy.bytes;
        if ((alignment & 15) == 0) {
            for (uint64 at = threadIdx.x; at < copy.bytes / 16; at += blockDim.x)
                ((uint4*)to)[at] = ((const uint4*)from)[at];
        } else {
            for (uint64 at = threadIdx.x; at < copy.bytes / 2; at += blockDim.x)
                ((uint16*)to)[at] = ((const uint16*)from)[at];
        }
    }
}

// New keys and values of one chunk into a cache [rows, capacity, width]: position past_length[b] + s of row
// first_row + b, for the valid s alone. Grid: (positions of the chunk, batch, arrays).

struct RowScatter {
    const uint8* source;  // [batch, chunk, bytes]
    uint8* destination;   // [rows, capacity, bytes]
    uint64 bytes;         // of one position
};

extern "C" __global__ void scatter_positions(
    const RowScatter* table, const int* past_length, const int* query_length, int chunk, int capacity, int first_row) {
    const RowScatter scatter = table[blockIdx.z];
    const int offset = blockIdx.x, row = blockIdx.y;
    const int valid = query_length ? query_length[row] : chunk;
    const int position = past_length[row] + offset;
    if (offset >= valid || position < 0 || position >= capacity) return;
    const uint8* from = scatter.source + ((uint64)row * chunk + offset) * scatter.bytes;
    uint8* to = scatter.destination + ((uint64)(first_row + row) * capacity + position) * scatter.bytes;
    if ((((uint64)from | (uint64)to | scatter.bytes) & 15) == 0) {
        for (uint64 at = threadIdx.x; at < scatter.bytes / 16; at += blockDim.x)
            ((uint4*)to)[at] = ((const uint4*)from)[at];
    } else {
        for (uint64 at = threadIdx.x; at < scatter.bytes / 2; at += blockDim.x)
            ((uint16*)to)[at] = ((const uint16*)from)[at];
    }
}

// The first ``length`` positions of a row for a graph that is not the cache's own, zeros behind them up to ``room``:
// [heads, size, room] where ``turned``, else [heads, room, size]. Strides are in elements. Grid: (blocks, arrays); 256
// threads move tiles of 32 by 32, so that reads and writes both go along a line.

struct LayingOut {
    const uint8* source;
    uint8* destination;
    uint64 head_stride;
    uint64 position_stride;
    uint32 heads;
    uint32 size;
    uint32 turned;
    uint32 unused;
};

template <typename Element>
__device__ __forceinline__ void lay_out(const LayingOut* table, Element (*tile)[33], int length, int room) {
    const LayingOut array = table[blockIdx.y];
    const int across = (array.size + 31) / 32, down = (room + 31) / 32;
    const int column = threadIdx.x % 32, line = threadIdx.x / 32;
    const Element* from = (const Element*)array.source;
    Element* to = (Element*)array.destination;
    for (int index = blockIdx.x; index < (int)array.heads * across * down; index += gridDim.x) {
        const int head = index / (across * down), rest = index % (across * down);
        const int first = rest / across * 32, start = rest % across * 32;  // position, element
        for (int row = line; row < 32; row += 8) {
            const int position = first + row, element = start + column;
            Element value = 0;
            if (position < length && element < (int)array.size)
                value = from[head * array.head_stride + position * array.position_stride + element];
            tile[row][column] = value;
        }
        __syncthreads();
        for (int row = line; row < 32; row += 8) {
            const int position = first + (array.turned ? column : row), element = start + (array.turned ? row : column);
            if (position < room && element < (int)array.size) {
                const uint64 at = array.turned ? ((uint64)head * array.size + element) * room + position
                                               : ((uint64)head * room + position) * array.size + element;
                to[at] = array.turned ? tile[column][row] : tile[row][column];
            }
        }
        __syncthreads();
    }
}

extern "C" __global__ void lay_out_16(const LayingOut* table, int length, int room) {
    __shared__ uint16 tile[32][33];
    lay_out(table, tile, length, room);
}

extern "C" __global__ void lay_out_32(const LayingOut* table, int length, int room) {
    __shared__ uint32 tile[32][33];
    lay_out(table, tile, length, room);
}

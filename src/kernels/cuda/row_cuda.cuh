// Compiles a .rows.h for NVIDIA GPUs. Included first by the .cu sources that cmake/RowKernels.cmake
// generates, and by nothing else.
#pragma once

#include <cstdint>

#include "kernels/cuda/adjacent.cuh"
#include "kernels/cuda/launch.cuh"

#define JACKSCREW_ROW_KERNEL(Args)                                                                \
  template <>                                                                                     \
  const RowKernel& row_kernel<Args>();                                                            \
  namespace cuda {                                                                                \
  int run_##Args(const void* args, int64_t rows, void* stream);                                   \
  int run_##Args(const void* args, int64_t rows, void* stream) {                                  \
    return launch_rows(*static_cast<const Args*>(args), rows, static_cast<cudaStream_t>(stream)); \
  }                                                                                               \
  int batch_##Args(const void* args, const int64_t* rows, int launches, void* stream);            \
  int batch_##Args(const void* args, const int64_t* rows, int launches, void* stream) {           \
    if constexpr (BatchedKernel<Args>) {                                                          \
      return launch_batch(static_cast<const Args*>(args), rows, launches,                         \
                          static_cast<cudaStream_t>(stream));                                     \
    }                                                                                             \
    return cudaErrorInvalidValue;                                                                 \
  }                                                                                               \
  }

#include "base/half.h"
#include "kernels/cuda/pieces.cuh"
#include "kernels/cuda/team_base.cuh"
#include "kernels/row_kernel.h"
#include "kernels/row_operands.h"

namespace jackscrew::cuda {

// kSize threads, a block or one of its warps, are the team: loops are strided over them and end
// with a barrier, reductions shuffle within warps and pass through shared memory between them. The
// order of a sum is fixed by the team's size, so results repeat bit for bit.
template <int kSize>
struct TeamOf : TeamBase<kSize> {
  using TeamBase<kSize>::thread;
  using TeamBase<kSize>::barrier;

  template <class F>
  __device__ void each(int64_t n, F f) const {
    each_mine(n, f);
    barrier();
  }

  // Copies an array that is among the kernel's arguments. A GPU reads them fast where all threads
  // of a warp want the same, one after the other where they do not: each reads all that its warp
  // has.
  template <int N>
  __device__ void copy_argument(const float (&from)[N], float* to) const {
    static_assert(kSize == kThreads && N == kThreads);
    const uint32_t first = threadIdx.x / kWarp * kWarp;
    float mine = 0.0f;
#pragma unroll
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
      const float value = from[first + lane];
      if (threadIdx.x % kWarp == lane) mine = value;
    }
    to[threadIdx.x] = mine;
    barrier();
  }

  // Calls f(team, i) for i in [0, n): every warp of the block is a team, and takes its own.
  template <class F>
  __device__ void each_apart(int64_t n, F f) const {
    constexpr int kTeams = kThreads / kWarp;
    for (int64_t i = threadIdx.x / kWarp; i < n; i += kTeams) f(TeamOf<kSize / kTeams>{}, i);
    barrier();
  }

  // The same as `each`; on a CPU it is never vectorised.
  template <class F>
  __device__ void each_scalar(int64_t n, F f) const {
    each(n, f);
  }

  // Calls f(value of each operand...) for every element; f takes by reference what is written. A
  // thread has as many elements at a time as its widest load has of the widest operand, where all
  // operands begin at multiples of that.
  template <class F, class... Operands>
  __device__ void elementwise(int64_t n, F f, Operands... operands) const {
    constexpr int kCount = kWidestBytes / widest<Operands...>();
    const bool aligned = (begins_at_multiple<kCount>(operands) && ...);
    const int64_t pieces = aligned ? n / kCount : 0;
    for (int64_t i = thread(); i < pieces; i += kSize) {
      with_values<kCount>(f, Held<Operands, kCount>(operands, i * kCount)...);
    }
    for (int64_t i = pieces * kCount + thread(); i < n; i += kSize) {
      with_values<1>(f, Held<Operands, 1>(operands, i)...);
    }
    barrier();
  }

  // Calls f(row, column) for every element of a matrix of fewer than 2^31.
  template <class F>
  __device__ void each(int64_t rows, int64_t columns, F f) const {
    const auto width = static_cast<uint32_t>(columns);
    const auto count = static_cast<uint32_t>(rows) * width;
    for (uint32_t i = thread(); i < count; i += kSize) f(i / width, i % width);
    barrier();
  }

  template <class F>
  __device__ float sum(int64_t n, F f) const {
    return reduce<float>(n, 0.0f, f, [](float a, float b) { return a + b; });
  }

  template <class F>
  __device__ double sum_f64(int64_t n, F f) const {
    return reduce<double>(n, 0.0, f, [](double a, double b) { return a + b; });
  }

  template <class F>
  __device__ float max(int64_t n, float floor, F f) const {
    return reduce<float>(n, floor, f, [](float a, float b) { return a > b ? a : b; });
  }

  // `largest` becomes the largest of x [n], `sum` the sum of exp(x - largest): x, longer than what
  // caches keep for a block, is read once. A thread rescales its sum when it meets a larger
  // element.
  static constexpr bool kHasExponentials = true;
  template <class Exp>
  __device__ void exponentials(const float* x, int64_t n, Exp exp, float& largest,
                               double& sum) const {
    static_assert(kSize == kThreads);
    largest = -3.0e38f;
    sum = 0.0;
    const auto add = [&](float of, double exponentials) {
      const float larger = of > largest ? of : largest;
      sum = sum * static_cast<double>(exp(largest - larger)) +
            exponentials * static_cast<double>(exp(of - larger));
      largest = larger;
    };
    const int64_t pieces = begins_at_multiple<4>(reads(x)) ? n / 4 : 0;
    for (int64_t i = thread(); i < pieces; i += kSize) {
      const auto four = *reinterpret_cast<const Adjacent<float, 4>*>(x + 4 * i);
      const float(&value)[4] = four.elements;
      const float low = value[0] > value[1] ? value[0] : value[1];
      const float high = value[2] > value[3] ? value[2] : value[3];
      const float of_four = low > high ? low : high;
      if (of_four > largest) add(of_four, 0.0);
      sum += static_cast<double>((exp(value[0] - largest) + exp(value[1] - largest)) +
                                 (exp(value[2] - largest) + exp(value[3] - largest)));
    }
    for (int64_t i = 4 * pieces + thread(); i < n; i += kSize) add(x[i], 1.0);
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float of = __shfl_xor_sync(0xFFFFFFFFu, largest, offset);
      add(of, __shfl_xor_sync(0xFFFFFFFFu, sum, offset));
    }
    __shared__ float largest_of[kThreads / kWarp];
    __shared__ double sum_of[kThreads / kWarp];
    if (threadIdx.x % kWarp == 0) {
      largest_of[threadIdx.x / kWarp] = largest;
      sum_of[threadIdx.x / kWarp] = sum;
    }
    __syncthreads();
    largest = largest_of[0];
    sum = sum_of[0];
    for (int warp = 1; warp < kThreads / kWarp; ++warp) add(largest_of[warp], sum_of[warp]);
    __syncthreads();  // before the next call writes them
  }

  // Calls f(i, byte i as an integer).
  template <class Byte, class F>
  __device__ void each_byte(const Byte* bytes, int64_t n, F f) const {
    each(n, [&](int64_t i) { f(i, static_cast<int32_t>(bytes[i])); });
  }

  template <class Byte, class F>
  __device__ float sum_bytes(const Byte* bytes, int64_t n, F f) const {
    return sum(n, [&](int64_t i) { return f(i, static_cast<int32_t>(bytes[i])); });
  }

  // N accumulators for the loops of `each`. Only their total matters, so a thread has one for all.
  template <int64_t N>
  struct Sums {
    float mine = 0.0f;
    __device__ float& operator[](int64_t) { return mine; }
  };
  template <int64_t N>
  __device__ float total(const Sums<N>& sums) const {
    return sum(kSize, [&](int64_t) { return sums.mine; });
  }

  static constexpr bool kHasDot = false;

  static constexpr bool kHasEights = true;
  // Whether codes can be loaded, and values stored, eight at a time.
  template <class Element>
  __device__ static bool can_have_eights(const void* codes, const Element* out) {
    return reinterpret_cast<uintptr_t>(codes) % 8 == 0 &&
           begins_at_multiple<kWidestBytes / sizeof(Element)>(reads(out));
  }
  // Whether eight elements can be loaded at a time from here on.
  __device__ static bool begins_at_eight(const void* at) {
    return reinterpret_cast<uintptr_t>(at) % kWidestBytes == 0;
  }
  // Calls put(i, value) for eight elements.
  template <class Element, class Put>
  __device__ static void eight(const Element* from, const Put& put) {
    const auto loaded = *reinterpret_cast<const Adjacent<Element, 8>*>(from);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) put(i, to_float(loaded.elements[i]));
  }
  // Calls f(i, put) for i = 0, 8, ... below n, a multiple of 8: put(k, value) for k in [0, 8),
  // times what f returns, is for out[i + k]. f is called by whole teams: where n ends it repeats
  // the first elements.
  template <class F, class Element>
  __device__ void each_eight(uint32_t n, F f, Element* out) const {
    constexpr int kCount = kWidestBytes / sizeof(Element);
    for (uint32_t first = 0; first < n; first += 8 * kSize) {
      const uint32_t i = first + 8 * thread();
      float values[8 / kCount][kCount];
      const float factor = f(
          i < n ? i : 0, [&](uint32_t k, float value) { values[k / kCount][k % kCount] = value; });
      if (i >= n) continue;
#pragma unroll
      for (auto& part : values) {
#pragma unroll
        for (float& value : part) value *= factor;
      }
#pragma unroll
      for (int part = 0; part < 8 / kCount; ++part) {
        store_piece(values[part], out + i + part * kCount);
      }
    }
    barrier();
  }

  // The sum of x[i] times value i: f(i, put) is as for each_eight(). x begins at a multiple of 16
  // bytes.
  template <class F>
  __device__ float dot_eights(uint32_t n, F f, const float* x) const {
    float sum = 0.0f;
#pragma unroll 2
    for (uint32_t first = 0; first < n; first += 8 * kSize) {
      const uint32_t i = first + 8 * thread();
      const uint32_t at = i < n ? i : 0;
      const auto factors = *reinterpret_cast<const Adjacent<float, 8>*>(x + at);
      float part = 0.0f;
      const float factor =
          f(at, [&](uint32_t k, float value) { part += factors.elements[k] * value; });
      if (i < n) sum += factor * part;
    }
    return combined(sum, [](float a, float b) { return a + b; });
  }

  // Writes code(i), an int32_t, as byte i of `to`, four at a time where that leaves no thread
  // without work. Any thread may be asked for any i.
  template <class Byte, class F>
  __device__ void put_bytes(Byte* to, int64_t n, F code) const {
    const bool in_words = n >= 4 * kSize && reinterpret_cast<uintptr_t>(to) % 4 == 0;
    const int64_t words = in_words ? n / 4 : 0;
    for (int64_t i = thread(); i < words; i += kSize) {
      uint32_t word[1] = {};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        word[0] |= static_cast<uint32_t>(static_cast<uint8_t>(code(4 * i + k))) << 8 * k;
      }
      store_words(word, to + 4 * i);
    }
    for (int64_t i = 4 * words + thread(); i < n; i += kSize) to[i] = static_cast<Byte>(code(i));
    barrier();
  }

  // Sixteen numbers, one in each thread of half a warp, which threads look up by asking each other:
  // faster than an array, which the hardware reads one index after the other. An index is its
  // lowest four bits.
  struct SharedTable {
    float mine;
    __device__ float operator[](uint32_t index) const {
      return __shfl_sync(0xFFFFFFFFu, mine, static_cast<int>(index), 16);
    }
  };
  __device__ SharedTable shared_table(const float (&table)[16]) const {
    return {table[thread() % 16]};
  }

  // Sixteen bytes as integers.
  template <class Byte>
  struct Int32x16 {
    const Byte* from;
    __device__ int32_t operator[](int64_t i) const { return from[i]; }
  };
  __device__ float half(f16 value) const {
    return to_float(value);
  }
  template <class Byte>
  __device__ Int32x16<Byte> sixteen(const Byte* from) const {
    return {from};
  }

  // The signed bytes of two words, the lowest first.
  struct Int32x16OfWords {
    uint64_t first, second;
    __device__ int32_t operator[](int64_t i) const {
      const uint64_t word = i < 8 ? first : second;
      return static_cast<int8_t>(word >> i % 8 * 8);
    }
  };
  __device__ Int32x16OfWords sixteen(uint64_t first, uint64_t second) const {
    return {first, second};
  }

  // Looks up sixteen numbers of a table: element i is table[bits[i] >> shift & 15].
  template <class Integers>
  struct Looked {
    const float* table;
    Integers bits;
    int shift;
    __device__ float operator[](int64_t i) const { return table[bits[i] >> shift & 15]; }
  };
  template <class Integers>
  __device__ Looked<Integers> lookup(const float (&table)[16], const Integers& bits,
                                     int shift) const {
    return {table, bits, shift};
  }

  // Unpacks 32 integers of kBits bits. They lie in planes as little-endian words: the low 4 bits of
  // all, then the next 2, then the next 1, those of 4, 2 and 1 that add up to kBits; 8 bits are
  // whole bytes. `from` is aligned to words.
  template <int kBits>
  struct Int32x32 {
    const uint32_t* words;
    __device__ int32_t operator[](int64_t index) const {
      const auto i = static_cast<uint32_t>(index);
      if constexpr (kBits == 8) return static_cast<int32_t>(words[i / 4] >> (i % 4 * 8) & 255u);
      constexpr uint32_t kPlaces[] = {0, kBits & 4, kBits & 6};  // of planes 4, 2 and 1
      uint32_t value = 0;
      if constexpr ((kBits & 4) != 0) value = words[i / 8] >> (i % 8 * 4) & 15u;
      if constexpr ((kBits & 2) != 0) {
        value |= (words[kPlaces[1] + i / 16] >> (i % 16 * 2) & 3u) << kPlaces[1];
      }
      if constexpr ((kBits & 1) != 0) value |= (words[kPlaces[2]] >> i & 1u) << kPlaces[2];
      return static_cast<int32_t>(value);
    }
  };
  template <int kBits>
  __device__ Int32x32<kBits> unpack(const uint8_t* from) const {
    return {reinterpret_cast<const uint32_t*>(from)};
  }

  // Whether looking numbers up in a table is faster than computing them: not here, where a thread's
  // own table would lie in memory.
  static constexpr bool kHasTables = false;

  // One value for each of a row's first N elements, for a later `each` over the same elements: a
  // thread meets the same ones again, and keeps only those.
  template <class T, int64_t N>
  struct RowRegisters {
    T values[(N + kSize - 1) / kSize];
    __device__ T& operator[](int64_t i) { return values[i / kSize]; }
  };

  // Memory that all loops of a row share; N is kSharedFloats of the kernel's struct. It is the
  // block's, so a warp cannot have any.
  template <int64_t N>
  struct Shared {
    static_assert(kSize == kThreads);
    __device__ float* data() { return dynamic_floats(); }
  };

  // to [8, n] = from [n, 8] transposed.
  __device__ void transpose_eight(const float* from, int64_t n, float* to) const {
    each(n, 8, [&](int64_t i, int64_t j) { to[j * n + i] = from[i * 8 + j]; });
  }

  // Multiplies every `block` values (a power of two that divides N) by the Hadamard matrix of that
  // size with elements 1 and -1 (Sylvester's order). For warps, whose threads have elements 32
  // apart.
  template <int64_t N>
  __device__ void hadamard(RowRegisters<float, N>& kept, int64_t block) const {
    static_assert(kSize == kWarp && N % kWarp == 0);
    constexpr int kMine = N / kWarp;
    for (int apart = 1; apart < block && apart < kWarp; apart *= 2) {
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const float mine = kept.values[i];
        const float other = __shfl_xor_sync(0xFFFFFFFFu, mine, apart);
        kept.values[i] =
            (threadIdx.x & static_cast<uint32_t>(apart)) != 0 ? other - mine : other + mine;
      }
    }
#pragma unroll
    for (int apart = 1; apart < kMine; apart *= 2) {
      if (apart * kWarp >= block) break;
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        if ((i & apart) != 0) continue;
        const float sum = kept.values[i] + kept.values[i + apart];
        kept.values[i + apart] = kept.values[i] - kept.values[i + apart];
        kept.values[i] = sum;
      }
    }
  }

  template <class F>
  __device__ void once(F f) const {
    if (thread() == 0) f();
    barrier();
  }

 private:
  // Calls f(i) for the thread's elements. Those of a warp are counted so that a loop over a
  // constant n is unrolled: RowRegisters stay in registers then.
  template <class F>
  __device__ static void each_mine(int64_t n, F f) {
    if constexpr (kSize == kWarp) {
      for (int64_t first = 0; first < n; first += kWarp) {
        const int64_t i = first + thread();
        if (i < n) f(i);
      }
    } else {
      for (int64_t i = thread(); i < n; i += kSize) f(i);
    }
  }

  // Bytes of an element.
  template <class... Operands>
  __device__ static constexpr int widest() {
    int bytes = 1;
    ((bytes = static_cast<int>(sizeof(typename Operands::Element)) > bytes
                  ? static_cast<int>(sizeof(typename Operands::Element))
                  : bytes),
     ...);
    return bytes;
  }
  template <int kCount, class Operand>
  __device__ static bool begins_at_multiple(const Operand& operand) {
    return reinterpret_cast<uintptr_t>(operand.at) %
               sizeof(Adjacent<std::remove_const_t<typename Operand::Element>, kCount>) ==
           0;
  }
  // All is loaded before anything is stored: operands may be the same memory.
  template <int kCount, class F, class... Values>
  __device__ static void with_values(const F& f, Values... held) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) f(held.values[k]...);
    (held.put(), ...);
  }

  template <class T, class F, class Combine>
  __device__ T reduce(int64_t n, T identity, F f, Combine combine) const {
    T value = identity;
    each_mine(n, [&](int64_t i) { value = combine(value, f(i)); });
    return combined(value, combine);
  }

  // The values of all threads as one.
  template <class T, class Combine>
  __device__ T combined(T value, Combine combine) const {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      value = combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
    }
    if constexpr (kSize == kWarp) {
      return value;
    } else {
      __shared__ T of_warps[kThreads / kWarp];
      if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
      __syncthreads();
      T total = of_warps[0];
      for (int warp = 1; warp < kThreads / kWarp; ++warp) total = combine(total, of_warps[warp]);
      __syncthreads();  // before the next reduction writes of_warps
      return total;
    }
  }
};

}  // namespace jackscrew::cuda

#include "kernels/cuda/row_launch.cuh"

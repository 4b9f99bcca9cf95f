// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC11). Random numbers are a pure function of (seed, purpose, step, tensor, index), so
// they do not depend on threads, on the split into micro-batches, or on where a run was resumed.
// Included by row kernels too: see inline.h.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace jackscrew {

// What a random number is for; part of the key, so that no two uses share numbers.
enum class RandomPurpose : uint32_t {
  init = 1,
  dropout = 2,
  shuffle = 3,
  sampling = 4,
  rounding = 5,
  rotation = 6,
  gradient_rounding = 7,  // of gradients on their way into an integer product
  state_rounding = 8      // of moments on their way into codes
};

struct Philox4 {
  uint32_t x[4];
};

// The multipliers of a round, and what it adds to the key.
inline constexpr uint32_t kPhiloxM0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxM1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxW0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxW1 = 0xBB67AE85u;

// One block of four 32-bit numbers for a 128-bit counter and a 64-bit key.
JACKSCREW_INLINE Philox4 philox4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                                    uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * c0;
    const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  return Philox4{{c0, c1, c2, c3}};
}

// Identifies a stream of random numbers: everything but the index within it.
struct RandomStream {
  uint64_t seed = 0;
  uint32_t purpose_and_step = 0;  // purpose in the top 4 bits, step below
  uint32_t tensor = 0;            // hash of the tensor's name

  JACKSCREW_INLINE static RandomStream make(uint64_t seed, RandomPurpose purpose, uint32_t step,
                                            uint32_t tensor) {
    return RandomStream{seed, (static_cast<uint32_t>(purpose) << 28) | (step & 0x0FFFFFFFu),
                        tensor};
  }

  // The random numbers at indices 4 * block to 4 * block + 3.
  JACKSCREW_INLINE Philox4 four(uint64_t block) const {
    return philox4x32(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                      purpose_and_step, tensor, static_cast<uint32_t>(seed),
                      static_cast<uint32_t>(seed >> 32));
  }
  // The 32-bit random number at `index`.
  JACKSCREW_INLINE uint32_t bits(uint64_t index) const {
    const Philox4 r = four(index >> 2);
    // Not r.x[index & 3]: an array that is indexed by a variable keeps loops from being vectorised.
    const uint32_t low = (index & 1) != 0 ? r.x[1] : r.x[0];
    const uint32_t high = (index & 1) != 0 ? r.x[3] : r.x[2];
    return (index & 2) != 0 ? high : low;
  }

  // Uniform in [0, 1) with 24 bits.
  JACKSCREW_INLINE static float uniform_of(uint32_t bits) {
    return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f);
  }
  JACKSCREW_INLINE float uniform(uint64_t index) const { return uniform_of(bits(index)); }
};

// FNV-1a, the hash of tensor names in RandomStream.
constexpr uint32_t name_hash(const char* text) {
  uint32_t h = 2166136261u;
  for (; *text != '\0'; ++text) h = (h ^ static_cast<uint8_t>(*text)) * 16777619u;
  return h;
}

}  // namespace jackscrew

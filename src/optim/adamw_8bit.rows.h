// AdamW whose moments are stored as codes of the dynamic maps, in blocks with the largest magnitude
// of each (arXiv 2110.02861, section 2). An update is that of AdamwUpdate on the decoded moments;
// the parameter sees the new moments before they are encoded.
//
// The GPU kernels of bitsandbytes apply the decay after the step, p = (p - step) * (1 - lr *
// decay); here, as in torch.optim.AdamW and in its own code for CPUs, the decay comes first.
//
// A nonzero moment never becomes 0, however small beside the largest of its block. For first
// moments this keeps the sign. For second moments it keeps the update bounded: one below 1.6e-7 of
// the largest would become 0 while the first moment is still there, and with the next gradient near
// 0 the step would be learning_rate * m / epsilon. Over 200 steps with gradients that span two
// decades this moved single weights by 900,000 learning rates where f32 states move them by 169;
// raised to the smallest code (3.25e-7 of the largest) it is 187.
//
// Second moments are rounded stochastically: a step adds some 0.1 % to one, less than half a code,
// so that rounded to nearest it would stay where it was when it should grow, and the update would
// be too large. (A tiny Qwen3 with 600 tokens, 200 steps: the largest change in the head is 196
// learning rates with f32 states, 233 with rounding to nearest, 197 with stochastic rounding.)
// First moments change by 10 % and do not need it.
#pragma once

#include "base/philox.h"
#include "kernels/row_kernel.h"
#include "kernels/step_scalars.h"
#include "optim/adamw_rule.h"
#include "quant/dynamic_map.h"

namespace jackscrew {

// Codes of a block, which share the largest magnitude.
inline constexpr int64_t kMomentBlock = 256;

template <class Team>
using MomentCodes = typename Team::template RowRegisters<int32_t, kMomentBlock>;
template <class Team>
using MomentValues = typename Team::template RowRegisters<float, kMomentBlock>;

// Shares of a block's largest value, by its inverse. That of a subnormal one has no place in f32:
// such blocks are raised by 2^64 first.
struct MomentShares {
  float raise, inverse;
  JACKSCREW_ROW explicit MomentShares(float largest)
      : raise(largest < 1.17549435e-38f ? 1.8446744e19f : 1.0f),
        inverse(largest > 0.0f ? 1.0f / (largest * raise) : 1.0f) {}
  JACKSCREW_ROW float of(float value) const { return value * raise * inverse; }
};

// Codes of the first `size` first moments of a block, rounded to nearest.
template <class Team, class Map>
JACKSCREW_ROW void encode_first_moments(const Team& team, const Map& map,
                                        MomentValues<Team>& values, float largest, int64_t size,
                                        MomentCodes<Team>& codes) {
  const MomentShares shares(largest);
  team.each(size,
            [&](int64_t i) { codes[i] = dynamic_code_keeping_sign(map, shares.of(values[i])); });
}

// Codes of the first `size` second moments of a block, rounded stochastically by the random numbers
// of that block.
template <class Team, class Map>
JACKSCREW_ROW void encode_second_moments(const Team& team, const Map& map,
                                         MomentValues<Team>& values, float largest, int64_t size,
                                         const RandomStream& random, int64_t block,
                                         MomentCodes<Team>& codes) {
  const MomentShares shares(largest);
  constexpr int64_t kRandomBlocks = kMomentBlock / 64;
  team.each_random(random, static_cast<uint64_t>(block * kRandomBlocks), size,
                   [&](int64_t i, uint32_t bits) {
                     const float share = shares.of(values[i]);
                     const float uniform = RandomStream::uniform_of(bits);
                     const int32_t code = dynamic_code(map, share, uniform);
                     const int32_t lowest = share > 0.0f ? 1 : 0;
                     codes[i] = code < lowest ? lowest : code;
                   });
}

// Some blocks of one tensor, or of a piece of it; also zeroes the gradient for the next step.
struct Adamw8bitUpdate {
  // A row copies the maps, of which every element looks up several numbers, to where it reads them
  // fast. So that this takes little of the time, rows are long; but there are kRows, to give all of
  // a GPU work, before they become longer than kFewestBlocks.
  static constexpr int64_t kFewestBlocks = 16, kMostBlocks = 64;
  static constexpr int64_t kRows = 1024;
  static constexpr int64_t kSharedFloats = 512;
  // With the registers that the compiler would take a multiprocessor has room for two blocks of
  // threads, which wait for memory most of the time.
  static constexpr int kBlocksAtOnce = 3;
  DynamicMap signed_map, unsigned_map;
  const StepScalars* scalars;
  const AdamwFactors* factors;
  float* parameter;  // [count]
  float* gradient;   // [count]
  uint8_t* m;        // [count], codes of signed_map
  uint8_t* v;        // [count], codes of unsigned_map
  float* m_absmax;   // [blocks]
  float* v_absmax;   // [blocks]
  int64_t count;
  int64_t first_block;  // of the piece in the tensor
  AdamwRule rule;

  JACKSCREW_INLINE int64_t blocks() const { return (count + kMomentBlock - 1) / kMomentBlock; }
  // Blocks of one row of this kernel.
  JACKSCREW_INLINE int64_t blocks_of_row() const {
    const int64_t shared_out = blocks() / kRows;
    if (shared_out < kFewestBlocks) return kFewestBlocks;
    return shared_out < kMostBlocks ? shared_out : kMostBlocks;
  }
  JACKSCREW_INLINE int64_t rows() const {
    return (blocks() + blocks_of_row() - 1) / blocks_of_row();
  }

  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const AdamwFactors f = *factors;
    typename Team::template Shared<kSharedFloats> memory;
    float* const of_signed = memory.data();  // [256]
    float* const of_unsigned = of_signed + 256;
    team.copy_argument(signed_map.values, of_signed);
    team.copy_argument(unsigned_map.values, of_unsigned);
    const NearDynamicMap first_map{of_signed, signed_map.decades, signed_map.zero};
    const NearDynamicMap second_map{of_unsigned, unsigned_map.decades, unsigned_map.zero};
    const int64_t first = row * blocks_of_row();
    const int64_t left = blocks() - first;
    team.each_apart(left < blocks_of_row() ? left : blocks_of_row(),
                    [&](const auto& part, int64_t i) {
                      const int64_t block = first + i;
                      const int64_t size = count - block * kMomentBlock;
                      // A size that the compiler knows keeps all of a block in registers.
                      if (size >= kMomentBlock) {
                        update(part, f, first_map, second_map, block, kMomentBlock);
                      } else {
                        update(part, f, first_map, second_map, block, size);
                      }
                    });
  }

 private:
  template <class Team>
  JACKSCREW_ROW void update(const Team& team, const AdamwFactors& f,
                            const NearDynamicMap& first_map, const NearDynamicMap& second_map,
                            int64_t block, int64_t size) const {
    const int64_t begin = block * kMomentBlock;
    float* p = parameter + begin;
    float* g = gradient + begin;
    uint8_t* first = m + begin;
    uint8_t* second = v + begin;
    if (f.active == 0) {
      team.each(size, [&](int64_t i) { g[i] = 0.0f; });
      return;
    }
    // Bytes are widened and narrowed in loops of their own: see Team::Int32x16 of row_cpu.h.
    MomentCodes<Team> m_code, v_code;
    team.each(size, [&](int64_t i) { m_code[i] = first[i]; });
    team.each(size, [&](int64_t i) { v_code[i] = second[i]; });
    const float m_scale = m_absmax[block];
    const float v_scale = v_absmax[block];
    // All is loaded before anything is stored, so that a GPU waits for it once.
    MomentValues<Team> value, grad, new_m, new_v;
    team.each(size, [&](int64_t i) { value[i] = p[i]; });
    team.each(size, [&](int64_t i) { grad[i] = g[i]; });
    team.each(size, [&](int64_t i) {
      const float clipped = grad[i] * f.clip_scale;
      new_m[i] = rule.first(first_map.values[m_code[i]] * m_scale, clipped);
      new_v[i] = rule.second(second_map.values[v_code[i]] * v_scale, clipped);
      value[i] = rule.step(value[i], new_m[i], new_v[i], f);
    });
    team.each(size, [&](int64_t i) { p[i] = value[i]; });
    team.each(size, [&](int64_t i) { g[i] = 0.0f; });
    const float m_largest =
        team.max(size, 0.0f, [&](int64_t i) { return __builtin_fabsf(new_m[i]); });
    const float v_largest = team.max(size, 0.0f, [&](int64_t i) { return new_v[i]; });
    encode_first_moments(team, first_map, new_m, m_largest, size, m_code);
    // All tensors use the same random numbers: nothing is ever added across tensors.
    const RandomStream random =
        RandomStream::make(scalars->seed, RandomPurpose::state_rounding, scalars->step, 0);
    encode_second_moments(team, second_map, new_v, v_largest, size, random, first_block + block,
                          v_code);
    team.each(size, [&](int64_t i) { first[i] = static_cast<uint8_t>(m_code[i]); });
    team.each(size, [&](int64_t i) { second[i] = static_cast<uint8_t>(v_code[i]); });
    team.once([&] {
      m_absmax[block] = m_largest;
      v_absmax[block] = v_largest;
    });
  }
};
JACKSCREW_ROW_KERNEL(Adamw8bitUpdate)

// Decodes one block of moments.
struct DecodeMoments {
  DynamicMap map;
  const uint8_t* codes;  // [count]
  const float* absmax;   // [blocks]
  float* values;         // [count]
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t begin = row * kMomentBlock;
    const int64_t size = count - begin < kMomentBlock ? count - begin : kMomentBlock;
    MomentCodes<Team> code;
    team.each(size, [&](int64_t i) { code[i] = codes[begin + i]; });
    const float scale = absmax[row];
    team.each(size, [&](int64_t i) { values[begin + i] = map.values[code[i]] * scale; });
  }
};
JACKSCREW_ROW_KERNEL(DecodeMoments)

// Encodes one block of moments, first or second ones.
struct EncodeMoments {
  DynamicMap map;
  const StepScalars* scalars;
  const float* values;  // [count]
  uint8_t* codes;       // [count]
  float* absmax;        // [blocks]
  int64_t count;
  bool second;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t begin = row * kMomentBlock;
    const int64_t size = count - begin < kMomentBlock ? count - begin : kMomentBlock;
    MomentValues<Team> kept;
    team.each(size, [&](int64_t i) { kept[i] = values[begin + i]; });
    const float largest = team.max(size, 0.0f, [&](int64_t i) { return __builtin_fabsf(kept[i]); });
    MomentCodes<Team> code;
    if (second) {
      // The update in the same step draws from another stream.
      const RandomStream random =
          RandomStream::make(scalars->seed, RandomPurpose::state_rounding, scalars->step, 1);
      encode_second_moments(team, map, kept, largest, size, random, row, code);
    } else {
      encode_first_moments(team, map, kept, largest, size, code);
    }
    team.each(size, [&](int64_t i) { codes[begin + i] = static_cast<uint8_t>(code[i]); });
    team.once([&] { absmax[row] = largest; });
  }
};
JACKSCREW_ROW_KERNEL(EncodeMoments)

}  // namespace jackscrew

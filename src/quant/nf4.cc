#include "quant/nf4.h"

#include "quant/group_format.h"
#include "quant/int8_dynamic.rows.h"
#include "quant/nf4.rows.h"

namespace jackscrew {

namespace {

// As published; the thresholds are the midpoints.
constexpr FourBitCodebook kNf4Codebook = {
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
     -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
     0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
     0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f},
    {-0.8480964004993439f, -0.6106329262256622f, -0.4599952697753906f, -0.33967943489551544f,
     -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
     0.1202552504837513f, 0.2035212516784668f, 0.2920137718319893f, 0.3893125355243683f,
     0.5016634166240692f, 0.6427869200706482f, 0.8614784181118011f}};

// Twelfths, the sign in the highest bit. Nothing is encoded with it, so there are no thresholds.
constexpr FourBitCodebook kBnbFp4Codebook = {
    {0.0f, 0.0625f / 12, 8.0f / 12, 1.0f, 4.0f / 12, 6.0f / 12, 2.0f / 12, 3.0f / 12, 0.0f,
     -0.0625f / 12, -8.0f / 12, -1.0f, -4.0f / 12, -6.0f / 12, -2.0f / 12, -3.0f / 12},
    {}};

static_assert(Nf4Codec::kNestedBlock == kNf4NestedBlock);

GroupedMatrix<Nf4Codec> place_codes(const FourBitCodebook& codebook, bool nested, void* base,
                                    int64_t rows, int64_t cols) {
  const Nf4Parts parts = nf4_parts(nested, base, rows, cols);
  Nf4Codec codec{};
  codec.codebook = codebook;
  codec.codes = parts.codes.data<uint8_t>();
  if (nested) {
    codec.map = signed_dynamic_map();
    codec.absmax_codes = parts.absmax.data<uint8_t>();
    codec.nested_absmax = parts.nested_absmax.data<float>();
    codec.offset = parts.offset.data<float>();
  } else {
    codec.absmax = parts.absmax.data<float>();
  }
  return {codec, {cols, kNf4Block, 0}, parts.bytes};
}

class Nf4Format : public GroupFormat<Nf4Codec> {
 public:
  Nf4Format(const char* name, bool nested) : GroupFormat(name), nested_(nested) {}

  void encode(Ops& ops, const RowSource& source, const Storage& storage, const Rounding& rounding,
              Arena& scratch) const override {
    auto matrix = matrix_of(storage);
    if (!nested_) return encode_groups(ops, source, storage, matrix, rounding);
    const Arena::Frame frame(scratch);
    const int64_t blocks = group_count(matrix.layout, storage.rows);
    const Tensor absmax = scratch.tensor(DType::f32, {blocks});
    matrix.codec.absmax = absmax.data<float>();
    encode_groups(ops, source, storage, matrix, rounding);
    const Rounding nearest{.scalars = rounding.scalars, .in_place = rounding.in_place};
    ops.launch(Nf4Centre{absmax.data<float>(), matrix.codec.offset, blocks, nearest}, 1);
    const Int8DynamicCodec nested{matrix.codec.map, matrix.codec.absmax_codes,
                                  matrix.codec.nested_absmax};
    ops.launch(
        EncodeGroups<Int8DynamicCodec>{
            nested, {blocks, kNf4NestedBlock, 0}, absmax.data<float>(), 0, blocks, nearest},
        ceil_div(blocks, kNf4NestedBlock));
  }

 private:
  GroupedMatrix<Nf4Codec> place(void* base, int64_t rows, int64_t cols) const override {
    return place_codes(kNf4Codebook, nested_, base, rows, cols);
  }

  bool nested_;
};

class BnbFp4Format : public ReadGroupFormat<Nf4Codec> {
 public:
  BnbFp4Format(const char* name, bool nested) : ReadGroupFormat(name), nested_(nested) {}

 private:
  GroupedMatrix<Nf4Codec> place(void* base, int64_t rows, int64_t cols) const override {
    return place_codes(kBnbFp4Codebook, nested_, base, rows, cols);
  }

  bool nested_;
};

}  // namespace

const Format& nf4_format() {
  static const Nf4Format kFormat("nf4", false);
  return kFormat;
}

const Format& nf4_double_format() {
  static const Nf4Format kFormat("nf4_double", true);
  return kFormat;
}

const Format& bnb_fp4_format() {
  static const BnbFp4Format kFormat("fp4", false);
  return kFormat;
}

const Format& bnb_fp4_double_format() {
  static const BnbFp4Format kFormat("fp4_double", true);
  return kFormat;
}

Nf4Parts nf4_parts(bool is_double, void* base, int64_t rows, int64_t cols) {
  const int64_t elements = checked_mul(rows, cols);
  const int64_t blocks = ceil_div(elements, kNf4Block);
  PartLayout parts(base);
  Nf4Parts out{};
  out.codes = parts.tensor<uint8_t>(ceil_div(elements, 2));
  if (is_double) {
    out.absmax = parts.tensor<uint8_t>(blocks);
    out.nested_absmax = parts.tensor<float>(ceil_div(blocks, kNf4NestedBlock));
    out.offset = parts.tensor<float>(1);
  } else {
    out.absmax = parts.tensor<float>(blocks);
  }
  out.bytes = parts.bytes();
  return out;
}

std::span<const float> nf4_values() {
  return kNf4Codebook.values;
}

std::span<const float> bnb_fp4_values() {
  return kBnbFp4Codebook.values;
}

}  // namespace jackscrew

#include "quant/nf4.h"

#include "quant/group_format.h"
#include "quant/int8_dynamic.rows.h"
#include "quant/nf4.rows.h"

namespace jackscrew {

namespace {

// As published; the thresholds are the midpoints.
constexpr Nf4Book kBook = {
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
     -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
     0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
     0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f},
    {-0.8480964004993439f, -0.6106329262256622f, -0.4599952697753906f, -0.33967943489551544f,
     -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
     0.1202552504837513f, 0.2035212516784668f, 0.2920137718319893f, 0.3893125355243683f,
     0.5016634166240692f, 0.6427869200706482f, 0.8614784181118011f}};

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
    ops.launch(Nf4Centre{absmax.data<float>(), matrix.codec.offset, blocks}, 1);
    const Int8DynamicCodec nested{matrix.codec.map, matrix.codec.absmax_codes,
                                  matrix.codec.nested_absmax};
    ops.launch(EncodeGroups<Int8DynamicCodec>{nested,
                                              {blocks, Nf4Codec::kNestedBlock, 0},
                                              absmax.data<float>(),
                                              0,
                                              blocks,
                                              {}},
               ceil_div(blocks, Nf4Codec::kNestedBlock));
  }

 private:
  GroupedMatrix<Nf4Codec> place(void* base, int64_t rows, int64_t cols) const override {
    const GroupLayout layout{cols, Nf4Codec::kBlock, 0};
    const int64_t blocks = group_count(layout, rows);
    Parts parts(base);
    Nf4Codec codec{};
    codec.book = kBook;
    codec.codes = parts.take<uint8_t>(ceil_div(checked_mul(rows, cols), 2));
    if (nested_) {
      codec.map = signed_dynamic_map();
      codec.absmax_codes = parts.take<uint8_t>(blocks);
      codec.nested_absmax = parts.take<float>(ceil_div(blocks, Nf4Codec::kNestedBlock));
      codec.offset = parts.take<float>(1);
    } else {
      codec.absmax = parts.take<float>(blocks);
    }
    return {codec, layout, parts.bytes()};
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

std::span<const float> nf4_values() {
  return kBook.values;
}

}  // namespace jackscrew

// Weight: a parameter tensor of the model in some storage format. Owns its bytes, or reads those of
// a file where they lie. A vector (norm) is a matrix of one row.
#pragma once

#include <string>

#include "quant/format.h"
#include "quant/stored_rows.h"
#include "tensor/memory.h"

namespace jackscrew {

class Weight {
 public:
  // Throw Error(model) when the format cannot hold such a matrix.
  Weight(Memory& memory, WeightSpec spec, FormatPointer format);
  // In a format of the table.
  Weight(Memory& memory, WeightSpec spec, const Format& format);
  // A read-only weight over bytes in a mapped file, u8 [format.storage_bytes()], which must outlive
  // it: it can be neither encoded nor taken out. The bytes may lie at any address.
  Weight(WeightSpec spec, FormatPointer format, const Tensor& mapped);

  const WeightSpec& spec() const { return spec_; }
  const std::string& name() const { return spec_.name; }
  int64_t rows() const { return spec_.rows; }  // out
  int64_t cols() const { return spec_.cols; }  // in
  int64_t size() const { return spec_.size(); }
  bool is_vector() const { return spec_.is_vector(); }
  bool is_mapped() const { return memory_ == nullptr; }
  // The format of storage(): f32 while the weight is taken out, else stored_format().
  const Format& format() const;
  const Format& stored_format() const { return *format_; }
  Storage storage() const;

  // The values themselves, f32 [rows, cols], when they are stored as f32; else an empty tensor.
  Tensor as_f32() const;

  // The storage itself, where it is signed bytes with one scale per row; else empty tensors.
  Int8Rows as_int8_rows() const;
  // The storage itself, where it is 4-bit codes of transformed rows; else nothing.
  Int4Rows as_int4_rows() const;

  // Rows [begin, end) as f32 or bf16.
  void decode(Ops& ops, int64_t begin, int64_t end, const Tensor& out) const;
  // y [1, rows] (+)= x [1, cols] Wᵀ, in f32: see Format::multiply.
  void multiply(Ops& ops, const Tensor& x, const Tensor& y, Accumulate accumulate,
                Arena& scratch) const;
  // Rows indices[i] as f32.
  void gather(Ops& ops, const Tensor& indices, const Tensor& out) const;
  // Re-encodes all rows from a master, f32 [rows, cols], contiguous.
  void publish(Ops& ops, const Tensor& master, const Rounding& rounding, Arena& scratch);

  // Encodes all rows from a source.
  void encode(Ops& ops, const RowSource& source, const Rounding& rounding, Arena& scratch);

  // A weight may be taken out of storage so that it is exact while it is trained. release_storage()
  // frees its bytes; take_out() makes it read `values`, f32 [rows, cols], which the caller keeps
  // alive; put_back() encodes them into new storage in its format. Between the first two calls it
  // has no values.
  void release_storage();
  void take_out(const Tensor& values);
  void put_back(Ops& ops, const Rounding& rounding, Arena& scratch);

  // Fills the weight from a file, converting where the formats differ; `staging` holds panels on
  // the way. Throws Error(model) naming the tensor when the shape differs.
  void load(Ops& ops, const StoredTensor& stored, Arena& staging);
  // Writes the file's values to out, f32 [rows, cols], without rounding them to this weight's
  // format as load() does.
  void read_original(Ops& ops, const StoredTensor& stored, const Tensor& out, Arena& staging) const;

 private:
  StoredRows stored_rows(Ops& ops, const StoredTensor& stored, Arena& staging) const;

  WeightSpec spec_;
  FormatPointer format_;
  Memory* memory_;  // null: the bytes are those of a file
  OwnedTensor storage_;
  Tensor mapped_;
  Tensor taken_out_;  // f32 [rows, cols]; empty unless taken out
};

}  // namespace jackscrew

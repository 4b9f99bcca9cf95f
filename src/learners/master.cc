#include "learners/master.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "quant/format.h"
#include "quant/plain.h"
#include "quant/plain.rows.h"

namespace jackscrew {

namespace {

// Sums are formed in chunks of this many elements, the chunks in order, whatever the threads.
constexpr int64_t kChunk = 65536;

template <class T>
double squared_change(int threads, const Tensor& before, const Tensor& after) {
  const T* a = before.data<T>();
  const T* b = after.data<T>();
  const int64_t count = before.size();
  std::vector<double> sums(static_cast<size_t>(ceil_div(count, kChunk)), 0.0);
  parallel_for(threads, static_cast<int64_t>(sums.size()), [&](int64_t chunk, int) {
    const int64_t end = std::min(count, (chunk + 1) * kChunk);
    double sum = 0.0;
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      const double change =
          static_cast<double>(to_float(b[i])) - static_cast<double>(to_float(a[i]));
      sum += change * change;
    }
    sums[static_cast<size_t>(chunk)] = sum;
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

Master::Master(Memory& memory, const std::string& name, int64_t rows, int64_t cols, DType dtype)
    : memory_(&memory),
      rows_(rows),
      cols_(cols),
      dtype_(dtype),
      tensor_(name_hash(name.c_str())),
      values_(allocate()) {}

OwnedTensor Master::allocate() const {
  return {*memory_, Purpose::masters, dtype_, {rows_, cols_}};
}

void Master::fetch(Context& context, int64_t begin, int64_t end, const Tensor& to) const {
  if (dtype_ == DType::f32) {
    context.ops.copy(to, view().rows(begin, end));
    return;
  }
  const Arena::Frame frame(context.scratch);
  const int64_t step = std::min(end - begin, panel_rows(cols_, dtype_size(dtype_)));
  const Tensor panel = context.scratch.tensor(dtype_, {step, cols_});
  for (int64_t first = begin; first < end; first += step) {
    const int64_t last = std::min(end, first + step);
    const Tensor part = panel.rows(0, last - first);
    context.ops.copy(part, view().rows(first, last));
    convert_to_f32(context.ops, part, to.rows(first - begin, last - begin));
  }
}

double Master::store(Context& context, const Tensor& from) {
  OwnedTensor next = allocate();
  if (dtype_ == DType::f32) {
    context.ops.copy(next.view(), from);
  } else {
    const Arena::Frame frame(context.scratch);
    const int64_t step = std::min(rows_, panel_rows(cols_, dtype_size(dtype_)));
    const Tensor panel = context.scratch.tensor(dtype_, {step, cols_});
    for (int64_t begin = 0; begin < rows_; begin += step) {
      const int64_t end = std::min(rows_, begin + step);
      const Tensor part = panel.rows(0, end - begin);
      context.ops.launch(RoundBf16{from.rows(begin, end).data<float>(), part.data<bf16>(), cols_,
                                   begin, Rounding{true, context.scalars, tensor_}},
                         part.rows());
      context.ops.copy(next.view().rows(begin, end), part);
    }
  }
  const double change =
      context.ops.plans_only() ? 0.0
      : dtype_ == DType::f32   ? squared_change<float>(context.ops.threads(), view(), next.view())
                               : squared_change<bf16>(context.ops.threads(), view(), next.view());
  values_ = std::move(next);
  return change;
}

}  // namespace jackscrew

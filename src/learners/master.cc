#include "learners/master.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/parallel.h"
#include "quant/format.h"
#include "quant/plain.h"
#include "quant/plain.rows.h"

namespace jackscrew {

namespace {

// Sums are formed in chunks of this many elements and added in order, for any number of threads.
constexpr int64_t kChunk = 65536;

template <class T>
double squared_distance(int threads, const T* a, const T* b, int64_t count) {
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

void copy_values(Ops& ops, HostCopy how, const Tensor& to, const Tensor& from) {
  how == HostCopy::in_order ? ops.copy(to, from) : ops.copy_async(to, from);
}

Master::Master(Memory& memory, const std::string& name, int64_t rows, int64_t cols, DType dtype)
    : memory_(&memory),
      rows_(rows),
      cols_(cols),
      dtype_(dtype),
      tensor_(name_hash(name.c_str())),
      values_(allocate()) {}

OwnedTensor Master::allocate() const {
  OwnedTensor values(*memory_, Purpose::masters, dtype_, {rows_, cols_});
  memory_->expect_replacement(values.view());
  return values;
}

void Master::fetch(Context& context, int64_t begin, int64_t end, const Tensor& to,
                   HostCopy copy) const {
  if (dtype_ == DType::f32) {
    copy_values(context.ops, copy, to, view().rows(begin, end));
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

double Master::store(Context& context, const Tensor& from, HostCopy copy) {
  const double change = dtype_ == DType::f32 ? store_as<float>(context, from, copy)
                                             : store_as<bf16>(context, from, copy);
  return context.ops.plans_only() ? 0.0 : change;
}

template <class T>
double Master::store_as(Context& context, const Tensor& from, HostCopy copy) {
  const Arena::Frame frame(context.scratch);
  const int64_t step = std::min(rows_, panel_rows(cols_, dtype_size(dtype_)));
  Tensor panel;  // [step, cols], rounded on the device
  if constexpr (std::is_same_v<T, bf16>) panel = context.scratch.tensor(dtype_, {step, cols_});
  const bool plans = context.ops.plans_only();
  std::vector<T> arrived(plans ? 0 : static_cast<size_t>(step * cols_));  // on the host
  OwnedTensor next;
  // A checkpoint may have linked the file: it is only read, and a new one is written.
  if (!file().empty()) next = allocate();
  const Tensor& to = next.empty() ? values_.view() : next.view();
  double change = 0.0;
  for (int64_t begin = 0; begin < rows_; begin += step) {
    const int64_t end = std::min(rows_, begin + step);
    Tensor part = from.rows(begin, end);
    if constexpr (std::is_same_v<T, bf16>) {
      part = panel.rows(0, end - begin);
      context.ops.launch(
          RoundBf16{from.rows(begin, end).template data<float>(), part.template data<bf16>(), cols_,
                    begin, Rounding{true, context.scalars, tensor_}},
          part.rows());
    }
    if (plans) break;  // the first panel is the largest
    copy_values(context.ops, copy, Tensor(arrived.data(), dtype_, {part.rows(), cols_}), part);
    const T* before = view().rows(begin, end).template data<T>();
    change += squared_distance(context.ops.threads(), before, arrived.data(), part.size());
    std::memcpy(to.rows(begin, end).raw(), arrived.data(), static_cast<size_t>(part.bytes()));
  }
  if (!next.empty()) values_ = std::move(next);
  return change;
}

}  // namespace jackscrew

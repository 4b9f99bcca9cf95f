#include "kernels/cpu/gemm.h"

#include <oneapi/dnnl/dnnl.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "base/parallel.h"

namespace jackscrew {

namespace {

// Tiles of the result. Larger ones reuse operands better, smaller ones balance threads better: 256 x 512
// loses under 5 % to whole-matrix calls at 2048 x 2048 x 2048 and leaves 32 tiles there.
constexpr int64_t kTileRows = 256;
constexpr int64_t kTileColumns = 512;
// Contractions over tokens vary from batch to batch; they are cut so that few lengths occur. At 1024
// terms the extra pass over the tile costs under 1 %.
constexpr int64_t kDepthChunk = 1024;
// Varying extents come as a multiple of this plus a remainder below it: at most 2 x 256 / 32 shapes.
constexpr int64_t kGrain = 32;

// Cuts [0, extent) into pieces of `tile`, then a multiple of kGrain, then the rest.
class Pieces {
 public:
  Pieces(int64_t extent, int64_t tile) : extent_(extent), tile_(tile) {
    full_ = extent / tile;
    const int64_t left = extent % tile;
    grained_ = left / kGrain * kGrain;
    rest_ = left % kGrain;
  }
  int64_t count() const { return full_ + (grained_ > 0 ? 1 : 0) + (rest_ > 0 ? 1 : 0); }
  int64_t begin(int64_t i) const {
    if (i <= full_) return i * tile_;
    return extent_ - rest_;
  }
  int64_t size(int64_t i) const {
    if (i < full_) return tile_;
    if (i == full_ && grained_ > 0) return grained_;
    return rest_;
  }

 private:
  int64_t extent_, tile_, full_ = 0, grained_ = 0, rest_ = 0;
};

// Nearly equal pieces of at most `tile`, multiples of kGrain but for the last: the extents of weights.
int64_t balanced_tile(int64_t extent, int64_t tile) {
  const int64_t pieces = ceil_div(extent, tile);
  return std::max(kGrain, round_up(ceil_div(extent, pieces), kGrain));
}

// bf16, m, n, k, transpose a, transpose b, row strides of a, b, c, accumulate
using Key = std::tuple<bool, int64_t, int64_t, int64_t, bool, bool, int64_t, int64_t, int64_t, bool>;

struct Primitive {
  dnnl::matmul matmul;
  // One set of memory objects per thread: their handles change with every call.
  struct Arguments {
    dnnl::memory a, b, c;
  };
  std::vector<Arguments> arguments;
};

}  // namespace

class CpuGemm::Impl {
 public:
  explicit Impl(int threads) : threads_(threads), engine_(dnnl::engine::kind::cpu, 0) {
    for (int i = 0; i < threads; ++i) streams_.emplace_back(engine_);
  }

  void run(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
           const Tensor& c, Accumulate accumulate) {
    const bool ta = transpose_a == Transpose::yes;
    const bool tb = transpose_b == Transpose::yes;
    const int64_t m = c.rows();
    const int64_t n = c.cols();
    const int64_t k = ta ? a.rows() : a.cols();
    if ((ta ? a.cols() : a.rows()) != m || (tb ? b.rows() : b.cols()) != n ||
        (tb ? b.cols() : b.rows()) != k || a.dtype() != b.dtype() || c.dtype() != DType::f32 ||
        (a.dtype() != DType::f32 && a.dtype() != DType::bf16)) {
      fail(ErrorKind::generic, "gemm of {}{} and {}{} into {}", a.describe(), ta ? "ᵀ" : "",
           b.describe(), tb ? "ᵀ" : "", c.describe());
    }
    if (m == 0 || n == 0) return;
    if (k == 0) fail(ErrorKind::generic, "gemm over an empty contraction");

    const Pieces rows(m, kTileRows);
    const int64_t tile_columns = balanced_tile(n, kTileColumns);
    const int64_t columns = ceil_div(n, tile_columns);
    const Pieces depths(k, k <= 2 * kDepthChunk && !ta ? k : kDepthChunk);
    // Primitives are made here, by one thread; the tasks below only look them up.
    for (int64_t i = 0; i < rows.count(); ++i) {
      for (const int64_t j : {int64_t{0}, columns - 1}) {
        for (int64_t p = 0; p < depths.count(); ++p) {
          primitive(key(a, ta, b, tb, c, rows.size(i), std::min(tile_columns, n - j * tile_columns),
                        depths.size(p), p > 0 || accumulate == Accumulate::yes));
        }
      }
    }
    const int64_t size = dtype_size(a.dtype());
    auto* a_data = static_cast<uint8_t*>(a.raw());
    auto* b_data = static_cast<uint8_t*>(b.raw());
    auto* c_data = static_cast<uint8_t*>(c.raw());
    parallel_for(threads_, rows.count() * columns, [&](int64_t task, int thread) {
      const int64_t i = task % rows.count();
      const int64_t j = task / rows.count();
      const int64_t row = rows.begin(i);
      const int64_t column = j * tile_columns;
      for (int64_t p = 0; p < depths.count(); ++p) {
        const int64_t depth = depths.begin(p);
        const bool add = p > 0 || accumulate == Accumulate::yes;
        const auto found = primitives_.find(key(a, ta, b, tb, c, rows.size(i),
                                                std::min(tile_columns, n - column), depths.size(p), add));
        execute(found->second, thread,
                a_data + size * (ta ? depth * a.row_stride() + row : row * a.row_stride() + depth),
                b_data + size * (tb ? column * b.row_stride() + depth : depth * b.row_stride() + column),
                c_data + dtype_size(DType::f32) * (row * c.row_stride() + column));
      }
    });
  }

 private:
  static Key key(const Tensor& a, bool ta, const Tensor& b, bool tb, const Tensor& c, int64_t m,
                 int64_t n, int64_t k, bool accumulate) {
    return {a.dtype() == DType::bf16, m, n, k, ta, tb, a.row_stride(), b.row_stride(), c.row_stride(),
            accumulate};
  }

  void primitive(const Key& key) {
    if (primitives_.contains(key)) return;
    const auto [bf16, m, n, k, ta, tb, a_stride, b_stride, c_stride, accumulate] = key;
    using dnnl::memory;
    const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc a({m, k}, type, ta ? memory::dims{1, a_stride} : memory::dims{a_stride, 1});
    const memory::desc b({k, n}, type, tb ? memory::dims{1, b_stride} : memory::dims{b_stride, 1});
    const memory::desc c({m, n}, memory::data_type::f32, memory::dims{c_stride, 1});
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    // What oneDNN chooses must not depend on how many threads this program uses.
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, engine_);
    Primitive made{dnnl::matmul(description), {}};
    omp_set_num_threads(threads);
    for (int i = 0; i < threads_; ++i) {
      made.arguments.push_back({memory(a, engine_, nullptr), memory(b, engine_, nullptr),
                                memory(c, engine_, nullptr)});
    }
    primitives_.emplace(key, std::move(made));
  }

  void execute(Primitive& primitive, int thread, void* a, void* b, void* c) {
    auto& arguments = primitive.arguments[static_cast<size_t>(thread)];
    auto& stream = streams_[static_cast<size_t>(thread)];
    arguments.a.set_data_handle(a);
    arguments.b.set_data_handle(b);
    arguments.c.set_data_handle(c);
    const std::array<dnnl_exec_arg_t, 3> list = {{{DNNL_ARG_SRC, arguments.a.get()},
                                                  {DNNL_ARG_WEIGHTS, arguments.b.get()},
                                                  {DNNL_ARG_DST, arguments.c.get()}}};
    // A team of one does not count as a parallel region, and oneDNN would start threads of its own.
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const dnnl_status_t status = dnnl_primitive_execute(
        primitive.matmul.get(), stream.get(), static_cast<int>(list.size()), list.data());
    omp_set_num_threads(threads);
    if (status != dnnl_success) {
      fail(ErrorKind::device, "oneDNN matmul failed with status {}", static_cast<int>(status));
    }
  }

  int threads_;
  dnnl::engine engine_;
  std::vector<dnnl::stream> streams_;
  std::map<Key, Primitive> primitives_;
};

CpuGemm::CpuGemm(int threads) : impl_(std::make_unique<Impl>(threads)) {}
CpuGemm::~CpuGemm() = default;

void CpuGemm::run(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                  const Tensor& c, Accumulate accumulate) {
  impl_->run(a, transpose_a, b, transpose_b, c, accumulate);
}

}  // namespace jackscrew

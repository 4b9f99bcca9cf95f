#include "kernels/cpu/gemm.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/process_memory.h"
#include "base/signals.h"
#include "kernels/cpu/dot.h"
#include "kernels/cpu/matmul_description.h"
#include "kernels/op_arguments.h"

namespace jackscrew {

namespace {

// A tile of the result is one task. oneDNN is fastest where the result is dense (its brgemm path
// needs that): then tiles are up to 256 rows of all columns, in c itself. Each tile packs b anew:
// of a bf16 product at a depth of 2048 that is 15 % with 64 rows, 4 % with 256. So where they would
// make less than 16 tasks, columns are cut before rows are, and a tile is computed apart from c.
// The pass from there to c costs a fifth of a product over 512 terms, and under 1 % from 1024 on.
// 16 tasks keep the cores of a desktop busy; on two cores 8 would take 2 % less time, and 32, or
// rows of 32, cost 3 to 15 %.
constexpr int64_t kRowTile = 256;
constexpr int64_t kFewestRows = 64;
constexpr int64_t kTasks = 16;
constexpr int64_t kFewestColumns = 256;
constexpr int64_t kDepthOfTilesApart = 1024;
constexpr int64_t kWholeColumns = 2048;
// Otherwise oneDNN packs both operands of every tile, which pays from 512 rows and 544 columns on.
// On AVX2 it does without packing below that (1/m + 1/n >= 0.0038) and falls to 45 % where strides
// are multiples of 2 KiB. Pieces have twice as many columns, unless that makes too few tasks.
constexpr int64_t kPackedRowTile = 512;
constexpr int64_t kFewestPackedColumns = 544;
constexpr int64_t kPackedColumns = 2 * kFewestPackedColumns;
constexpr int64_t kAliasingStride = 512;  // f32 elements
// Widened operands of a tile, 256 and 512 KiB, stay in L2.
constexpr int64_t kWidenedRows = 256;
constexpr int64_t kWidenedColumns = 512;
constexpr int64_t kWidenedDepth = 256;
// Contractions over tokens vary from batch to batch; they are cut so that few lengths occur. At
// 1024 terms the extra pass over the tile costs under 1 %.
constexpr int64_t kDepthChunk = 1024;
// Varying extents come as multiples of this plus a remainder below it: at most 512 / 32 + 31
// shapes.
constexpr int64_t kGrain = 32;

// Room for the code that oneDNN generates for a product (some 320 KiB) and for what it allocates
// beside it.
constexpr size_t kAddressSpace = size_t{16} << 20;

// oneDNN 2.6 does not see that it was given no memory for its code, and writes to address 0. Only
// what may be written to counts for `ulimit -d`.
void require_address_space() {
  void* const room = ::mmap(nullptr, kAddressSpace, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    const auto limit = address_limit();
    throw Error(
        ErrorKind::does_not_fit, "no address space is left for the code of a product",
        fmt::format("raise the limit of `{}`, or use a smaller model, batch or sequence_len",
                    limit ? limit->command : "ulimit -v"));
  }
  ::munmap(room, kAddressSpace);
}

// What oneDNN chooses must not depend on how many threads this program uses, and it must not start
// threads of its own, as it would in a team of one, which does not count as a parallel region.
class OneThread {
 public:
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_ = omp_get_max_threads();
};

// It makes code both before a product and within it, and finds none where it may not.
[[noreturn]] void fail_in_onednn(dnnl_status_t status) {
  const bool has_no_code = status == dnnl_unimplemented || status == dnnl_runtime_error;
  throw Error(ErrorKind::device,
              fmt::format("oneDNN cannot compute a product (status {})", static_cast<int>(status)),
              has_no_code ? "it writes the code that it runs: where the system forbids that "
                            "(MemoryDenyWriteExecute of systemd, execmem of SELinux), allow it for "
                            "jackscrew"
                          : "");
}

// Few and long chunks of b's rows, for the hardware prefetcher; enough to even out a held-up
// thread.
constexpr int64_t kDotChunksPerThread = 4;

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

// The size of so many nearly equal pieces, multiples of kGrain but for the last: for the extents of
// weights.
int64_t equal_tile(int64_t extent, int64_t pieces) {
  return std::max(kGrain, round_up(ceil_div(extent, pieces), kGrain));
}

// The same of pieces of at most `tile`.
int64_t balanced_tile(int64_t extent, int64_t tile) {
  return equal_tile(extent, ceil_div(extent, tile));
}

struct Tile {
  int64_t rows, columns;
  bool apart;  // computed in a dense buffer in f32, not in c
};

// Decided by shapes, strides and the instruction set, never by threads: the tile decides bits of c.
Tile choose_tile(IsaLevel isa, int64_t m, int64_t n, int64_t k, const Tensor& a, const Tensor& b,
                 bool tb) {
  const bool aliased =
      !tb && (a.row_stride() % kAliasingStride == 0 || b.row_stride() % kAliasingStride == 0);
  const bool packed = isa == IsaLevel::v3 ? n > kPackedColumns || aliased : n > kWholeColumns;
  if (packed) {
    const int64_t most = std::max<int64_t>(1, n / kFewestPackedColumns);
    const int64_t wanted =
        std::max(ceil_div(n, kPackedColumns), ceil_div(kTasks, ceil_div(m, kPackedRowTile)));
    return {kPackedRowTile, equal_tile(n, std::min(most, wanted)), false};
  }
  Tile tile{kRowTile, n, false};
  const int64_t pieces = std::min(ceil_div(kTasks, ceil_div(m, kRowTile)), n / kFewestColumns);
  if (k >= kDepthOfTilesApart && pieces > 1) {
    tile.columns = balanced_tile(n, ceil_div(n, pieces));
    tile.apart = true;
  }
  const int64_t rows = ceil_div(m * ceil_div(n, tile.columns), kTasks);
  tile.rows = std::clamp(round_up(rows, kGrain), kFewestRows, kRowTile);
  return tile;
}

// operands of bf16, result of bf16, m, n, k, transpose a, transpose b, row strides of a, b, c,
// accumulate
using Key =
    std::tuple<bool, bool, int64_t, int64_t, int64_t, bool, bool, int64_t, int64_t, int64_t, bool>;

struct alignas(64) CacheLine {
  std::array<uint8_t, 64> bytes;
};

struct ThreadBuffers {
  std::vector<CacheLine> scratch;  // oneDNN's, as much as the largest primitive asks for
  std::vector<float> a, b;         // operands widened from bf16
  std::vector<float> c;            // a result before it is rounded to bf16
};

struct Primitive {
  dnnl::matmul matmul;
  // One set of memory objects per thread: their handles change with every call.
  struct Arguments {
    dnnl::memory a, b, c, scratch;
  };
  std::vector<Arguments> arguments;
  int64_t used = 0;  // the number of the last product that did
};

// Of 50 to 100 KB each, generated code included: 38 MiB at most, for which beside_the_ledger()
// (session/fit.cc) has room. A step of one shape needs a few dozen; where the lengths of
// micro-batches vary, each length brings its own. Made again, one takes a fraction of a
// millisecond.
constexpr size_t kMostPrimitives = 384;
constexpr int kMostInOnednn = 128;  // those of a step: sessions of one model find one another's

}  // namespace

class CpuGemm::Impl {
 public:
  Impl(int threads, IsaLevel isa)
      : threads_(threads),
        isa_(isa),
        dot_(isa == IsaLevel::v3 ? v3::kDotKernels : v4::kDotKernels),
        engine_(dnnl::engine::kind::cpu, 0),
        buffers_(static_cast<size_t>(threads)) {
    for (int i = 0; i < threads; ++i) streams_.emplace_back(engine_);
    // Of the whole process: oneDNN would keep 1024, whatever is forgotten here.
    dnnl::set_primitive_cache_capacity(kMostInOnednn);
  }

  void run(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
           const Tensor& c, Accumulate accumulate) {
    const bool ta = transpose_a == Transpose::yes;
    const bool tb = transpose_b == Transpose::yes;
    const int64_t m = c.rows();
    const int64_t n = c.cols();
    const int64_t k = ta ? a.rows() : a.cols();
    check_gemm(a, transpose_a, b, transpose_b, c);
    if (m == 0 || n == 0) return;
    if (k == 0) fail(ErrorKind::generic, "gemm over an empty contraction");

    if (dot_product_pays(m, k) && !ta && tb) {
      if (a.dtype() == DType::f32) return dot(dot_.f32, a, b, c, accumulate);
      if (c.dtype() == DType::f32) return dot(dot_.bf16, a, b, c, accumulate);
      return dot_rounded(a, b, c, accumulate);
    }
    // oneDNN multiplies bf16 from AVX-512 on; below it every tile is widened to f32.
    const bool widen = a.dtype() == DType::bf16 && isa_ == IsaLevel::v3;
    const bool rounds = c.dtype() == DType::bf16;
    const Tile tile = widen ? Tile{kWidenedRows, balanced_tile(n, kWidenedColumns), rounds}
                            : choose_tile(isa_, m, n, k, a, b, tb);
    const Pieces rows(m, tile.rows);
    const int64_t columns = ceil_div(n, tile.columns);
    // One call of oneDNN rounds a sum once; several would also round it between them.
    const bool whole = rounds || (k <= 2 * kDepthChunk && !ta);
    const int64_t chunk = widen ? kWidenedDepth : whole ? k : kDepthChunk;
    const Pieces depths(k, chunk);
    const auto width = [&](int64_t j) { return std::min(tile.columns, n - j * tile.columns); };
    const auto key = [&](int64_t i, int64_t j, int64_t p) -> Key {
      const int64_t depth = depths.size(p);
      const bool add = p > 0 || (accumulate == Accumulate::yes && !tile.apart);
      const int64_t c_stride = tile.apart ? width(j) : c.row_stride();
      if (widen) {
        return {false,
                false,
                rows.size(i),
                width(j),
                depth,
                ta,
                tb,
                ta ? rows.size(i) : depth,
                tb ? depth : width(j),
                c_stride,
                add};
      }
      return {
          a.dtype() == DType::bf16, rounds && !tile.apart, rows.size(i), width(j), depth, ta, tb,
          a.row_stride(),           b.row_stride(),        c_stride,     add};
    };
    ++products_;
    // Primitives are made here, by one thread; the tasks below only look them up.
    for (int64_t i = 0; i < rows.count(); ++i) {
      for (const int64_t j : {int64_t{0}, columns - 1}) {
        for (int64_t p = 0; p < depths.count(); ++p) make_primitive(key(i, j, p));
      }
    }
    parallel_for(threads_, rows.count() * columns, [&](int64_t task, int thread) {
      const int64_t i = task % rows.count();
      const int64_t j = task / rows.count();
      const int64_t row = rows.begin(i);
      const int64_t column = j * tile.columns;
      auto& buffers = buffers_[static_cast<size_t>(thread)];
      const auto c_piece = c.rows(row, row + rows.size(i)).columns(column, column + width(j));
      if (tile.apart) buffers.c.resize(static_cast<size_t>(c_piece.size()));
      for (int64_t p = 0; p < depths.count(); ++p) {
        const int64_t begin = depths.begin(p);
        const int64_t end = begin + depths.size(p);
        const auto a_piece = ta ? a.rows(begin, end).columns(row, row + rows.size(i))
                                : a.rows(row, row + rows.size(i)).columns(begin, end);
        const auto b_piece = tb ? b.rows(column, column + width(j)).columns(begin, end)
                                : b.rows(begin, end).columns(column, column + width(j));
        execute(primitives_.find(key(i, j, p))->second, thread,
                widen ? widened(a_piece, buffers.a) : a_piece.raw(),
                widen ? widened(b_piece, buffers.b) : b_piece.raw(),
                tile.apart ? buffers.c.data() : c_piece.raw());
      }
      if (!tile.apart) return;
      if (rounds) {
        put<bf16>(buffers.c.data(), c_piece, accumulate);
      } else {
        put<float>(buffers.c.data(), c_piece, accumulate);
      }
    });
  }

 private:
  static void* widened(const Tensor& piece, std::vector<float>& to) {
    to.resize(static_cast<size_t>(piece.size()));
    for (int64_t r = 0; r < piece.rows(); ++r) {
      const bf16* from = piece.data<bf16>() + r * piece.row_stride();
      float* row = to.data() + r * piece.cols();
      for (int64_t i = 0; i < piece.cols(); ++i) row[i] = to_float(from[i]);
    }
    return to.data();
  }

  // Columns are computed independently, so here the cut may depend on the number of threads.
  template <typename T>
  void dot(void (*kernel)(const DotProduct<T>&, int64_t, int64_t), const Tensor& a, const Tensor& b,
           const Tensor& c, Accumulate accumulate) {
    const DotProduct<T> args{a.data<T>(),    b.data<T>(),    c.data<float>(),
                             c.rows(),       a.cols(),       a.row_stride(),
                             b.row_stride(), c.row_stride(), accumulate == Accumulate::yes};
    const int64_t n = c.cols();
    const int64_t chunks = std::min(n, threads_ * kDotChunksPerThread);
    parallel_for(threads_, chunks, [&](int64_t chunk, int) {
      kernel(args, n * chunk / chunks, n * (chunk + 1) / chunks);
    });
  }

  void dot_rounded(const Tensor& a, const Tensor& b, const Tensor& c, Accumulate accumulate) {
    const int64_t n = c.cols();
    const int64_t chunks = std::min(n, threads_ * kDotChunksPerThread);
    parallel_for(threads_, chunks, [&](int64_t chunk, int thread) {
      const int64_t begin = n * chunk / chunks;
      const Tensor part = c.columns(begin, n * (chunk + 1) / chunks);
      std::vector<float>& sums = buffers_[static_cast<size_t>(thread)].c;
      sums.resize(static_cast<size_t>(part.size()));
      const DotProduct<bf16> args{a.data<bf16>(), b.data<bf16>() + begin * b.row_stride(),
                                  sums.data(),    c.rows(),
                                  a.cols(),       a.row_stride(),
                                  b.row_stride(), part.cols(),
                                  false};
      dot_.bf16(args, 0, part.cols());
      put<bf16>(sums.data(), part, accumulate);
    });
  }

  // c (+)= dense sums of its shape, rounded to its type.
  template <class T>
  static void put(const float* sums, const Tensor& c, Accumulate accumulate) {
    for (int64_t r = 0; r < c.rows(); ++r) {
      const float* from = sums + r * c.cols();
      T* to = c.data<T>() + r * c.row_stride();
      if (accumulate == Accumulate::yes) {
        for (int64_t i = 0; i < c.cols(); ++i) to[i] = from_float<T>(from[i] + to_float(to[i]));
      } else {
        for (int64_t i = 0; i < c.cols(); ++i) to[i] = from_float<T>(from[i]);
      }
    }
  }

  void make_primitive(const Key& key) try {
    if (const auto found = primitives_.find(key); found != primitives_.end()) {
      found->second.used = products_;
      return;
    }
    if (primitives_.size() >= kMostPrimitives) forget_older_half();
    const auto [is_bf16, rounds, m, n, k, ta, tb, a_stride, b_stride, c_stride, accumulate] = key;
    using dnnl::memory;
    const auto type = is_bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc a({m, k}, type, ta ? memory::dims{1, a_stride} : memory::dims{a_stride, 1});
    const memory::desc b({k, n}, type, tb ? memory::dims{1, b_stride} : memory::dims{b_stride, 1});
    const auto result = rounds ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc c({m, n}, result, memory::dims{c_stride, 1});
    dnnl::primitive_attr attributes;
    // The library's own scratchpad belongs to the thread that made the primitive.
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    require_address_space();
    const OneThread chooses;
    const auto description = matmul_description(engine_, a, b, c, attributes);
    Primitive made{dnnl::matmul(description), {}, products_};
    const memory::desc scratch = description.scratchpad_desc();
    for (auto& buffer : buffers_) {
      const auto lines = (scratch.get_size() + sizeof(CacheLine) - 1) / sizeof(CacheLine);
      if (buffer.scratch.size() < lines) buffer.scratch.resize(lines);
      made.arguments.push_back({memory(a, engine_, nullptr), memory(b, engine_, nullptr),
                                memory(c, engine_, nullptr), memory(scratch, engine_, nullptr)});
    }
    primitives_.emplace(key, std::move(made));
  } catch (const dnnl::error& error) {
    fail_in_onednn(error.status);
  }

  // Of the primitives, but none of the present product.
  void forget_older_half() {
    std::vector<int64_t> used;
    for (const auto& [key, primitive] : primitives_) used.push_back(primitive.used);
    const auto middle = used.begin() + std::ssize(used) / 2;
    std::nth_element(used.begin(), middle, used.end());
    const int64_t last = std::min(*middle, products_ - 1);
    std::erase_if(primitives_, [&](const auto& entry) { return entry.second.used <= last; });
  }

  void execute(Primitive& primitive, int thread, void* a, void* b, void* c) {
    auto& arguments = primitive.arguments[static_cast<size_t>(thread)];
    auto& stream = streams_[static_cast<size_t>(thread)];
    arguments.a.set_data_handle(a);
    arguments.b.set_data_handle(b);
    arguments.c.set_data_handle(c);
    arguments.scratch.set_data_handle(buffers_[static_cast<size_t>(thread)].scratch.data());
    const std::array<dnnl_exec_arg_t, 4> list = {{{DNNL_ARG_SRC, arguments.a.get()},
                                                  {DNNL_ARG_WEIGHTS, arguments.b.get()},
                                                  {DNNL_ARG_DST, arguments.c.get()},
                                                  {DNNL_ARG_SCRATCHPAD, arguments.scratch.get()}}};
    dnnl_status_t status = dnnl_success;
    {
      const OneThread computes;
      const SignalsBlocked blocked;  // generated code puts the stack pointer into the heap
      status = dnnl_primitive_execute(primitive.matmul.get(), stream.get(),
                                      static_cast<int>(list.size()), list.data());
    }
    if (status != dnnl_success) fail_in_onednn(status);
  }

  int threads_;
  IsaLevel isa_;
  const DotKernels& dot_;
  dnnl::engine engine_;
  std::vector<dnnl::stream> streams_;
  std::vector<ThreadBuffers> buffers_;
  std::map<Key, Primitive> primitives_;
  int64_t products_ = 0;  // so far
};

CpuGemm::CpuGemm(int threads, IsaLevel isa) : impl_(std::make_unique<Impl>(threads, isa)) {}
CpuGemm::~CpuGemm() = default;

void CpuGemm::run(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                  const Tensor& c, Accumulate accumulate) {
  impl_->run(a, transpose_a, b, transpose_b, c, accumulate);
}

}  // namespace jackscrew

// cuBLASLt on the CPU, in place of src/kernels/cuda/cublaslt.cc: what the library's documentation
// says of the calls that the program makes, in double precision. Refuses what it would refuse.
#include "kernels/cuda/cublaslt.h"

#include <cstring>
#include <map>

#include "base/half.h"
#include "tests/support/cuda_emulation/device_pages.h"
#include "tests/support/cuda_emulation/machine.h"
#include "tests/support/cuda_emulation/streams.h"

namespace jackscrew::cuda {

struct CublasLtContext {};
struct CublasLtDescriptionOpaque {
  int compute_type, scale_type;
  std::map<int, int32_t> attributes;
};
struct CublasLtLayoutOpaque {
  int type;
  int64_t rows, columns, stride;
};
struct CublasLtPreferenceOpaque {
  std::map<int, uint64_t> attributes;
};

namespace {

constexpr int kNotSupported = 15;

// Elements of op(matrix); columns are contiguous.
struct Operand {
  const void* data;
  const CublasLtLayoutOpaque& layout;
  bool transposed;

  int64_t rows() const { return transposed ? layout.columns : layout.rows; }
  int64_t columns() const { return transposed ? layout.rows : layout.columns; }
  double at(int64_t row, int64_t column) const {
    if (transposed) std::swap(row, column);
    const int64_t place = column * layout.stride + row;
    if (layout.type == kCudaR32F) {
      return static_cast<double>(static_cast<const float*>(data)[place]);
    }
    return static_cast<double>(to_float(static_cast<const bf16*>(data)[place]));
  }
};

template <class Object, class... Args>
int create(Object** out, Args... args) {
  *out = new Object{args...};
  return 0;
}
template <class Object>
int destroy(Object* object) {
  delete object;
  return 0;
}

bool transposed(CublasLtDescription description, int attribute) {
  const auto found = description->attributes.find(attribute);
  return found != description->attributes.end() && found->second == kCublasTransposed;
}

bool fits(CublasLtDescription description, CublasLtLayout a, CublasLtLayout b, CublasLtLayout c) {
  const Operand left{nullptr, *a, transposed(description, kCublasLtTransposeA)};
  const Operand right{nullptr, *b, transposed(description, kCublasLtTransposeB)};
  const auto is_matrix = [](CublasLtLayout layout) { return layout->stride >= layout->rows; };
  return is_matrix(a) && is_matrix(b) && is_matrix(c) && left.rows() == c->rows &&
         left.columns() == right.rows() && right.columns() == c->columns && a->type == b->type &&
         (c->type == kCudaR32F || c->type == a->type) &&
         description->compute_type == kCublasCompute32F && description->scale_type == kCudaR32F;
}

CublasLt emulated() {
  CublasLt out{};
  out.path = "emulated";
  out.version = [] { return size_t{130000}; };
  out.create = [](CublasLtHandle* handle) { return create(handle); };
  out.destroy = [](CublasLtHandle handle) { return destroy(handle); };
  out.create_description = [](CublasLtDescription* description, int compute, int scale) {
    *description = new CublasLtDescriptionOpaque{compute, scale, {}};
    return 0;
  };
  out.destroy_description = [](CublasLtDescription description) { return destroy(description); };
  out.set_description = [](CublasLtDescription description, CublasLtDescriptionAttribute attribute,
                           const void* value, size_t bytes) {
    if (bytes != sizeof(int32_t)) return kNotSupported;
    std::memcpy(&description->attributes[attribute], value, bytes);
    return 0;
  };
  out.create_layout = [](CublasLtLayout* layout, int type, uint64_t rows, uint64_t columns,
                         int64_t stride) {
    return create(layout, type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride);
  };
  out.destroy_layout = [](CublasLtLayout layout) { return destroy(layout); };
  out.create_preference = [](CublasLtPreference* preference) { return create(preference); };
  out.destroy_preference = [](CublasLtPreference preference) { return destroy(preference); };
  out.set_preference = [](CublasLtPreference preference, CublasLtPreferenceAttribute attribute,
                          const void* value, size_t bytes) {
    const bool wide = attribute == kCublasLtMaxWorkspace;
    if (bytes != (wide ? sizeof(uint64_t) : sizeof(uint32_t))) return kNotSupported;
    preference->attributes[attribute] = 0;
    std::memcpy(&preference->attributes[attribute], value, bytes);
    return 0;
  };
  out.find_algorithms = [](CublasLtHandle, CublasLtDescription description, CublasLtLayout a,
                           CublasLtLayout b, CublasLtLayout c, CublasLtLayout d,
                           CublasLtPreference preference, int, CublasLtHeuristic* found,
                           int* count) {
    if (c != d || !fits(description, a, b, c)) return kNotSupported;
    const auto& machine = cuda_emulation::machine();
    auto& wanted = preference->attributes;
    for (const auto side : {kCublasLtMinAlignmentA, kCublasLtMinAlignmentB, kCublasLtMinAlignmentC,
                            kCublasLtMinAlignmentD}) {
      if (wanted[side] > machine.cublaslt_most_alignment) return kNotSupported;
    }
    *found = {};
    *count = wanted[kCublasLtMaxWorkspace] == 0 || machine.cublaslt_takes_workspace ? 1 : 0;
    return 0;
  };
  out.multiply = [](CublasLtHandle, CublasLtDescription description, const void* alpha,
                    const void* a, CublasLtLayout a_layout, const void* b, CublasLtLayout b_layout,
                    const void* beta, const void* c, CublasLtLayout c_layout, void* d,
                    CublasLtLayout d_layout, const CublasLtAlgorithm*, void*, size_t,
                    void* stream) {
    if (c_layout != d_layout || !fits(description, a_layout, b_layout, c_layout)) {
      return kNotSupported;
    }
    const auto scale = static_cast<double>(*static_cast<const float*>(alpha));
    const float kept = *static_cast<const float*>(beta);
    cuda_emulation::enqueue(static_cast<cudaStream_t>(stream), [=] {
      const OpenedPages opened(cuda_emulation::device_pages());
      const Operand left{a, *a_layout, transposed(description, kCublasLtTransposeA)};
      const Operand right{b, *b_layout, transposed(description, kCublasLtTransposeB)};
      const Operand addend{c, *c_layout, false};
      for (int64_t column = 0; column < c_layout->columns; ++column) {
        for (int64_t row = 0; row < c_layout->rows; ++row) {
          double sum = 0.0;
          for (int64_t k = 0; k < left.columns(); ++k) sum += left.at(row, k) * right.at(k, column);
          const int64_t place = column * d_layout->stride + row;
          const double before =
              kept == 0.0f ? 0.0 : static_cast<double>(kept) * addend.at(row, column);
          const auto total = static_cast<float>(scale * sum + before);
          if (d_layout->type == kCudaR32F) {
            static_cast<float*>(d)[place] = total;
          } else {
            static_cast<bf16*>(d)[place] = from_float<bf16>(total);
          }
        }
      }
    });
    return 0;
  };
  return out;
}

}  // namespace

const CublasLt& open_cublaslt(const std::vector<fs::path>&) {
  static const CublasLt kLibrary = emulated();
  return kLibrary;
}

}  // namespace jackscrew::cuda

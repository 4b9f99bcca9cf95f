#include "kernels/cuda/gemm.h"

#include <algorithm>

#include "base/error.h"

namespace jackscrew::cuda {

namespace {

void check(int status, const char* what) {
  if (status == 0) return;
  throw Error(ErrorKind::device, fmt::format("cuBLASLt: {} failed with status {}", what, status),
              "what was saved is intact: resume from the last checkpoint");
}

constexpr uint32_t kMostAlignment = 256;  // what cudaMalloc gives
constexpr uint32_t kVectorBytes = 16;     // what vector instructions ask for
// Every number of tokens brings some 40 plans of less than a KiB each: a few MiB in all.
constexpr size_t kMostPlans = 4096;

// The power of two that the address is a multiple of, at most kMostAlignment.
uint32_t alignment_of(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.raw()) | kMostAlignment;
  return static_cast<uint32_t>(address & -address);
}

int type_of(const Tensor& tensor) {
  return tensor.dtype() == DType::bf16 ? kCudaR16BF : kCudaR32F;
}

}  // namespace

Gemm::Gemm(const CublasLt& library, void* workspace, size_t workspace_bytes)
    : library_(library), workspace_(workspace), workspace_bytes_(workspace_bytes) {
  check(library_.create(&handle_), "starting it");
}

Gemm::~Gemm() {
  forget_plans();
  library_.destroy(handle_);
}

void Gemm::forget_plans() {
  for (const auto& [key, plan] : plans_) {
    library_.destroy_layout(plan.a);
    library_.destroy_layout(plan.b);
    library_.destroy_layout(plan.c);
    library_.destroy_description(plan.description);
  }
  plans_.clear();
}

// The library's matrices are column-major, ours row-major: it sees every matrix transposed, and cᵀ
// = op(b)ᵀ op(a)ᵀ makes b the left operand.
Gemm::Plan Gemm::make_plan(const Tensor& a, bool ta, const Tensor& b, bool tb, const Tensor& c,
                           uint32_t alignment) const {
  Plan plan;
  check(library_.create_description(&plan.description, kCublasCompute32F, kCudaR32F),
        "describing a product");
  const auto transpose = [&](CublasLtDescriptionAttribute attribute, bool transposed) {
    const int32_t value = transposed ? kCublasTransposed : kCublasNone;
    check(library_.set_description(plan.description, attribute, &value, sizeof value),
          "describing a product");
  };
  transpose(kCublasLtTransposeA, tb);
  transpose(kCublasLtTransposeB, ta);
  const auto layout = [&](const Tensor& tensor) {
    CublasLtLayout out = nullptr;
    check(library_.create_layout(&out, type_of(tensor), static_cast<uint64_t>(tensor.cols()),
                                 static_cast<uint64_t>(tensor.rows()),
                                 std::max(tensor.row_stride(), tensor.cols())),
          "describing a matrix");
    return out;
  };
  plan.a = layout(b);
  plan.b = layout(a);
  plan.c = layout(c);

  CublasLtPreference preference = nullptr;
  check(library_.create_preference(&preference), "choosing an algorithm");
  const auto prefer = [&](CublasLtPreferenceAttribute attribute, const auto& value) {
    check(library_.set_preference(preference, attribute, &value, sizeof value),
          "choosing an algorithm");
  };
  // Parts of the depth (split-K) are added up in an order that the algorithm fixes: not in place,
  // where they would be added in the order in which they finish. Parts are f32, so not of the
  // output's type where that is bf16.
  constexpr uint32_t kInComputeType = 2, kInOutputType = 4;
  const bool rounds = c.dtype() == DType::bf16;
  prefer(kCublasLtReductionSchemes, rounds ? kInComputeType : kInComputeType | kInOutputType);
  // The library may have no algorithm for a high promised alignment, or none with the workspace:
  // each attempt asks for less.
  struct Attempt {
    uint32_t most_alignment;  // bytes
    size_t workspace;
  };
  int status = 0;
  bool is_found = false;
  for (const Attempt& attempt :
       {Attempt{kMostAlignment, workspace_bytes_}, Attempt{kVectorBytes, workspace_bytes_},
        Attempt{kVectorBytes, 0}}) {
    prefer(kCublasLtMaxWorkspace, static_cast<uint64_t>(attempt.workspace));
    const auto promise = [&](CublasLtPreferenceAttribute attribute, uint32_t bytes) {
      prefer(attribute, std::min(bytes, attempt.most_alignment));
    };
    promise(kCublasLtMinAlignmentA, alignment_of(b));
    promise(kCublasLtMinAlignmentB, alignment_of(a));
    promise(kCublasLtMinAlignmentC, alignment);
    promise(kCublasLtMinAlignmentD, alignment);
    CublasLtHeuristic found{};
    int count = 0;
    status = library_.find_algorithms(handle_, plan.description, plan.a, plan.b, plan.c, plan.c,
                                      preference, 1, &found, &count);
    is_found = status == 0 && count > 0 && found.status == 0;
    plan.algorithm = found.algorithm;
    if (is_found) break;
  }
  library_.destroy_preference(preference);
  if (!is_found) {
    fail(ErrorKind::device, "cuBLASLt ({}) has no algorithm for {}{} · {}{} (status {})",
         library_.path, a.describe(), ta ? "ᵀ" : "", b.describe(), tb ? "ᵀ" : "", status);
  }
  return plan;
}

bool Gemm::lies_as(const Tensor& c, const Tensor& addend) {
  return c.dtype() == addend.dtype() && c.row_stride() == addend.row_stride();
}

void Gemm::run(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
               const Tensor& c, const With& with, void* stream) {
  const bool ta = transpose_a == Transpose::yes;
  const bool tb = transpose_b == Transpose::yes;
  const int64_t depth = ta ? a.rows() : a.cols();
  const Tensor& addend = with.addend != nullptr ? *with.addend : c;
  const uint32_t alignment = std::min(alignment_of(c), alignment_of(addend));
  const Key key{c.rows(),
                c.cols(),
                depth,
                a.row_stride(),
                b.row_stride(),
                c.row_stride(),
                alignment_of(a),
                alignment_of(b),
                alignment,
                ta,
                tb,
                a.dtype(),
                c.dtype()};
  auto known = plans_.find(key);
  if (known == plans_.end()) {
    if (plans_.size() >= kMostPlans) forget_plans();
    known = plans_.emplace(key, make_plan(a, ta, b, tb, c, alignment)).first;
  }
  const Plan& plan = known->second;
  const float alpha = with.scale;
  const float beta = with.addend != nullptr ? 1.0f : 0.0f;
  check(library_.multiply(handle_, plan.description, &alpha, b.raw(), plan.a, a.raw(), plan.b,
                          &beta, addend.raw(), plan.c, c.raw(), plan.c, &plan.algorithm, workspace_,
                          workspace_bytes_, stream),
        "a product");
}

}  // namespace jackscrew::cuda

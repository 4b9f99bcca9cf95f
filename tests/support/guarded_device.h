// A device whose memory the host cannot see, as a GPU's: the CPU, with pages that are closed but
// while an op runs. Whoever looks at a tensor without Ops crashes; whoever gives an op an address
// of the host, but to copy from or to, is an Error.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "kernels/device.h"
#include "tests/support/counting_ops.h"
#include "tests/support/guarded_pages.h"
#include "tests/support/sanitizer.h"

namespace jackscrew {

class GuardedBacking : public Backing {
 public:
  explicit GuardedBacking(std::shared_ptr<GuardedPages> pages) : pages_(std::move(pages)) {}
  void* acquire(size_t bytes) override { return pages_->take(bytes); }
  void release(void* data, size_t bytes) override { pages_->give_back(data, bytes); }

 private:
  std::shared_ptr<GuardedPages> pages_;
};

class GuardedOps : public CountingOps {
 public:
  GuardedOps(std::unique_ptr<Ops> inner, std::shared_ptr<GuardedPages> pages)
      : CountingOps(std::move(inner)), pages_(std::move(pages)) {}

  void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
            const Tensor& c, Accumulate accumulate) override {
    on_device({&a, &b, &c});
    within([&] { CountingOps::gemm(a, transpose_a, b, transpose_b, c, accumulate); });
  }
  void gemm_int8(const Int8Rows& a, const Int8Rows& b, Transpose transpose_b, const Tensor& c,
                 Accumulate accumulate, Arena& scratch) override {
    on_device({&a.codes, &a.scales, &b.codes, &b.scales, &c});
    within([&] { CountingOps::gemm_int8(a, b, transpose_b, c, accumulate, scratch); });
  }
  void attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                         const Tensor& v, const Tensor& out, const Tensor& lse,
                         Arena& scratch) override {
    on_device({&shape.cu_seqlens_q, &shape.cu_seqlens_k, &q, &k, &v, &out, &lse});
    within([&] { CountingOps::attention_forward(shape, q, k, v, out, lse, scratch); });
  }
  void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
                          const Tensor& dq, const Tensor& dk, const Tensor& dv,
                          Arena& scratch) override {
    on_device(
        {&shape.cu_seqlens_q, &shape.cu_seqlens_k, &q, &k, &v, &out, &lse, &dout, &dq, &dk, &dv});
    within([&] {
      CountingOps::attention_backward(shape, q, k, v, out, lse, dout, dq, dk, dv, scratch);
    });
  }
  void copy(const Tensor& to, const Tensor& from) override {
    within([&] { CountingOps::copy(to, from); });
  }
  void zero(const Tensor& tensor) override {
    on_device({&tensor});
    within([&] { CountingOps::zero(tensor); });
  }

 protected:
  void launch_rows(const RowKernel& kernel, const void* args, int64_t rows) override {
    for (size_t at = 0; at + sizeof(uintptr_t) <= kernel.args_bytes; at += sizeof(uintptr_t)) {
      uintptr_t word;
      std::memcpy(&word, static_cast<const uint8_t*>(args) + at, sizeof word);
      const auto* address = reinterpret_cast<const void*>(word);
      if (is_mapped(word) && !pages_->reserves(address) && is_data(word)) {
        fail(ErrorKind::generic, "{} is given an address of the host", kernel.name);
      }
    }
    within([&] { CountingOps::launch_rows(kernel, args, rows); });
  }

 private:
  void on_device(std::initializer_list<const Tensor*> tensors) const {
    for (const Tensor* tensor : tensors) {
      if (tensor->size() > 0 && !pages_->holds(tensor->raw())) {
        fail(ErrorKind::generic, "an op is given {} of the host", tensor->describe());
      }
    }
  }

  // Whether a word could be an address of this process. Sizes, strides and floats are not: programs
  // and libraries lie above 64 TiB. A word that begins with 0 or 1 may be a bool and what lay
  // behind it: of sixteen addresses of the host, one passes for that.
  static bool is_mapped(uintptr_t word) {
    constexpr uintptr_t kLowest = uintptr_t{1} << 46;
    // AddressSanitizer maps so much for itself that what lies between the members of a struct could
    // be an address: with it, the closed pages alone guard.
    if (kSanitized || word < kLowest || word >= 2 * kLowest || word % 256 < 2) return false;
    constexpr uintptr_t kPage = 4096;
    unsigned char resident;
    return ::mincore(reinterpret_cast<void*>(word / kPage * kPage), kPage, &resident) == 0;
  }

  // Whether a mapped address could be a tensor's, which code and closed pages are not: what the
  // stack had beside a float may be the upper half of an address, and most of what lies near
  // libraries is their code.
  static bool is_data(uintptr_t word) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {  // "begin-end rwxp ..."
      uintptr_t begin = 0, end = 0;
      char access[5] = {};
      if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) != 3) continue;
      if (word >= begin && word < end) return access[0] == 'r' && access[2] != 'x';
    }
    return false;
  }

  template <class Body>
  auto within(const Body& body) -> decltype(body()) {
    const OpenedPages opened(*pages_);
    return body();
  }

  std::shared_ptr<GuardedPages> pages_;
};

class GuardedDevice : public Device {
 public:
  explicit GuardedDevice(IsaLevel isa) : cpu_(open_device("cpu", {.threads = 2, .isa = isa})) {}

  std::string name() const override { return "guarded"; }
  std::unique_ptr<Backing> make_backing() const override {
    return std::make_unique<GuardedBacking>(pages_);
  }
  std::unique_ptr<Ops> make_ops(Memory& memory) const override {
    return std::make_unique<GuardedOps>(cpu_->make_ops(memory), pages_);
  }
  std::unique_ptr<Ops> make_plan_ops(Memory& memory) const override {
    return cpu_->make_plan_ops(memory);
  }
  std::optional<int64_t> own_memory() const override { return std::nullopt; }

 private:
  std::unique_ptr<Device> cpu_;
  std::shared_ptr<GuardedPages> pages_ = std::make_shared<GuardedPages>();
};

}  // namespace jackscrew

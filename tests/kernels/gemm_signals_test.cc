// A handler of whoever links the library never finds the stack pointer in the heap, where generated
// code of oneDNN puts it (base/signals.h).
#include <gtest/gtest.h>
#include <pthread.h>
#include <ucontext.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/gemm.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

// Handlers reach nothing else.
std::atomic<uintptr_t> stack_begin, stack_end;
std::atomic<int64_t> handled, off_the_stack;

void look_at_the_stack(int, siginfo_t*, void* context) {
  const auto* interrupted = static_cast<ucontext_t*>(context);
  const auto pointer = static_cast<uintptr_t>(interrupted->uc_mcontext.gregs[REG_RSP]);
  handled.fetch_add(1);
  if (pointer < stack_begin.load() || pointer >= stack_end.load()) off_the_stack.fetch_add(1);
}

// Handles SIGPROF as a profiler does, but on a stack of its own: the test must survive to fail.
class Profiler {
 public:
  Profiler() {
    pthread_attr_t attributes;
    ::pthread_getattr_np(::pthread_self(), &attributes);
    void* begin = nullptr;
    size_t bytes = 0;
    ::pthread_attr_getstack(&attributes, &begin, &bytes);
    ::pthread_attr_destroy(&attributes);
    stack_begin = reinterpret_cast<uintptr_t>(begin);
    stack_end = stack_begin + bytes;
    handled = off_the_stack = 0;
    const stack_t own = {.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
    ::sigaltstack(&own, &stack_before_);
    struct sigaction action = {};
    action.sa_sigaction = look_at_the_stack;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    ::sigaction(SIGPROF, &action, &before_);
    thread_ = std::thread([this, target = ::pthread_self()] {
      while (!ended_.load()) {
        ::pthread_kill(target, SIGPROF);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  ~Profiler() {
    ended_ = true;
    thread_.join();
    ::sigaction(SIGPROF, &before_, nullptr);
    ::sigaltstack(&stack_before_, nullptr);
  }

 private:
  std::vector<char> stack_ = std::vector<char>(1 << 16);
  stack_t stack_before_ = {};
  struct sigaction before_ = {};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

TEST(GemmSignals, HandlersFindTheStackWhereItBelongs) {
  constexpr int64_t kRows = 256;
  for (const int64_t depth : {256, 384, 1536, 3000}) {
    std::vector<float> a(static_cast<size_t>(kRows * depth), 1.0f);  // [kRows, depth]
    std::vector<float> b(static_cast<size_t>(kRows * depth), 1.0f);  // [kRows, depth]
    std::vector<float> c(static_cast<size_t>(kRows * kRows), 0.0f);  // [kRows, kRows]
    CpuGemm gemm(1, test_isa());
    const Profiler profiler;
    while (handled.load() < 50) {
      gemm.run(Tensor(a.data(), DType::f32, {kRows, depth}), Transpose::no,
               Tensor(b.data(), DType::f32, {kRows, depth}), Transpose::yes,
               Tensor(c.data(), DType::f32, {kRows, kRows}), Accumulate::no);
    }
    EXPECT_EQ(off_the_stack.load(), 0) << "of " << handled.load() << " at depth " << depth;
    EXPECT_EQ(c.back(), static_cast<float>(depth));
  }
}

}  // namespace
}  // namespace jackscrew

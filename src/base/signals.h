// How signals reach the program: never by a handler on a thread that computes.
//
// oneDNN 2.6.3's f32 products (jit_avx512_common_gemm_f32, jit_avx_gemm_f32: every instruction set
// from AVX on) copy a panel of an operand into a buffer. Up to a depth of 84 (AVX-512) or 252
// (AVX2) terms the buffer is on the stack; beyond, it comes from malloc, and the generated code
// then *sets the stack pointer to it* (`mov rsp, ARG_WS`). Up to 99 % of the time of a product with
// K = 256 is spent so (an interval timer's samples). A handler that runs then has its frame, 3.5
// KiB with AVX-512's registers, written below that buffer: over whatever malloc keeps there.
//
// Two guards follow. SignalsBlocked stands around each call of generated code, so that handlers of
// whoever links this library (a profiler's SIGPROF) run before it or after it. SignalThread lets a
// program act on signals without any handler.
#pragma once

#include <signal.h>

#include <functional>
#include <memory>
#include <span>

namespace jackscrew {

// Blocks every signal on the calling thread while it lives, except those that its own instructions
// cause (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT): whoever handles one of those
// must set SA_ONSTACK; the thread has a stack for it (base/map_guard.h). Two system calls, some 0.3
// us.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Waits for the process's signals on a thread of its own. Make it before any other thread: those
// that the calling thread starts later inherit what is blocked here, which is every signal except
// those above, those of job control (Ctrl-Z stops the process as usual) and SIGPIPE, which belongs
// to the thread that wrote.
class SignalThread {
 public:
  // Runs on that thread; may do whatever a thread may.
  using Action = std::function<void(int signal)>;

  // `action` is called for each of `signals`. Any other has its default effect, which for most is
  // to end the process. One that is ignored when this begins stays ignored, whichever it is:
  // `nohup` has a closed terminal ignored, a script's `command &` Ctrl-C.
  SignalThread(std::span<const int> signals, Action action);
  // Ends the thread. The calling thread keeps its signals blocked: one that arrives between the end
  // of a run and the end of the process must not turn success into failure.
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  class Waiter;
  std::unique_ptr<Waiter> waiter_;
};

// Whether the process was started to ignore `signal`, as `nohup` does with SIGHUP.
bool is_ignored(int signal);

// Ends the process by `signal`, so that whoever waits for it sees which one.
[[noreturn]] void end_by(int signal);

}  // namespace jackscrew

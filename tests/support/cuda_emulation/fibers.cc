// Blocks of threads as fibers; see kernels/cuda/launch.cuh beside this file.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "tests/support/cuda_emulation/device_pages.h"

extern "C" void jackscrew_switch_fiber(void** save, void* load);
// Keeps what a function may not change on the stack, and goes on where another left off.
asm(R"(
.text
.globl jackscrew_switch_fiber
.type jackscrew_switch_fiber, @function
jackscrew_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size jackscrew_switch_fiber, .-jackscrew_switch_fiber
)");

namespace jackscrew::cuda_emulation {

namespace {

constexpr size_t kStack = size_t{64} << 10;
constexpr size_t kMostThreads = 1024;
constexpr size_t kWarp = 32;

struct Barrier {
  size_t arrived = 0;
  size_t passed = 0;
};

struct Warp {
  Barrier barrier;
  std::array<uint64_t, kWarp> values;
  std::array<std::array<uint32_t, 4>, kWarp> a;
  std::array<std::array<uint32_t, 2>, kWarp> b;
  // The same of halves, so that each becomes a float once and not for every product with it.
  std::array<std::array<float, 8>, kWarp> a_floats;
  std::array<std::array<float, 4>, kWarp> b_floats;
};

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool there;
  size_t group;
};

struct Fiber {
  void* stack_pointer;
  bool done;
  size_t group = 0;          // that its next copy belongs to
  std::vector<Copy> copies;  // begun, and not waited for
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s\n", what);
  std::abort();
}

// All that runs now; one block at a time.
struct Block {
  Indices indices;
  const std::function<void()>* body = nullptr;
  uint8_t* stacks = nullptr;
  void* scheduler = nullptr;  // its stack pointer
  std::array<Fiber, kMostThreads> fibers;
  std::array<Warp, kMostThreads / kWarp> warps;
  Barrier barrier;
  std::vector<float> dynamic;
  size_t threads = 0;
  size_t now = 0;          // the fiber that runs
  size_t changes = 0;      // fibers ended and barriers passed
  bool backwards = false;  // the last warp first
} block;

void yield() {
  jackscrew_switch_fiber(&block.fibers[block.now].stack_pointer, block.scheduler);
}

void enter() {
  (*block.body)();
  if (!block.fibers[block.now].copies.empty()) fail("a thread ended before its copies");
  block.fibers[block.now].done = true;
  ++block.changes;
  yield();
  fail("an ended thread went on");
}

void wait(Barrier& barrier, size_t expected) {
  const size_t before = barrier.passed;
  if (++barrier.arrived == expected) {
    barrier.arrived = 0;
    ++barrier.passed;
    ++block.changes;
    return;
  }
  while (barrier.passed == before) yield();
}

void start(Fiber& fiber, uint8_t* stack) {
  // What jackscrew_switch_fiber() takes from the stack: six registers and where to go on. At its
  // first instruction a function finds the stack 8 bytes below a multiple of 16.
  auto** top = reinterpret_cast<void**>(stack + kStack) - 2;
  *top = reinterpret_cast<void*>(&enter);
  fiber = {top - 6, false, 0, {}};
}

// Runs a warp until all of its threads wait for others or have ended; how many ended.
size_t run_warp(size_t warp) {
  size_t ended = 0;
  for (bool goes_on = true; goes_on;) {
    const size_t changes = block.changes;
    for (size_t i = warp * kWarp; i < (warp + 1) * kWarp; ++i) {
      if (block.fibers[i].done) continue;
      block.now = i;
      block.indices.thread.x = static_cast<unsigned>(i);
      jackscrew_switch_fiber(&block.scheduler, block.fibers[i].stack_pointer);
      if (block.fibers[i].done) ++ended;
    }
    goes_on = block.changes != changes;
  }
  return ended;
}

void run_block() {
  block.barrier = {};
  for (Warp& warp : block.warps) warp.barrier = {};
  for (size_t i = 0; i < block.threads; ++i) start(block.fibers[i], block.stacks + i * kStack);
  // Every warp goes as far as it can before the next one begins, from the first to the last and in
  // the next block the other way round: where a barrier is missing, one finds what is not there
  // yet, or no longer.
  const size_t warps = block.threads / kWarp;
  block.backwards = !block.backwards;
  for (size_t left = block.threads; left > 0;) {
    const size_t changes = block.changes;
    for (size_t i = 0; i < warps; ++i) left -= run_warp(block.backwards ? warps - 1 - i : i);
    if (left > 0 && block.changes == changes) fail("some threads wait where others never come");
  }
}

Warp& warp_now() {
  return block.warps[block.now / kWarp];
}

int8_t byte_of(uint32_t word, size_t i) {
  return static_cast<int8_t>(word >> (8 * i));
}

float half_of(uint32_t word, size_t i) {
  return to_float(bf16{static_cast<uint16_t>(word >> (16 * i))});
}

}  // namespace

const Indices& indices() {
  return block.indices;
}

void sync_threads() {
  wait(block.barrier, block.threads);
}

void sync_warp() {
  wait(warp_now().barrier, kWarp);
}

uint64_t exchange(uint64_t mine, int from_lane) {
  Warp& warp = warp_now();
  warp.values[block.now % kWarp] = mine;
  wait(warp.barrier, kWarp);
  const uint64_t out = warp.values[static_cast<size_t>(from_lane)];
  wait(warp.barrier, kWarp);
  return out;
}

// PTX ISA, "Matrix Fragments for mma.m16n8k32": of a, register i of a thread holds four bytes of
// row lane / 4 (+ 8 for odd i) from column lane % 4 * 4 (+ 16 for i >= 2); of b, register i holds
// four of column lane / 4 from row lane % 4 * 4 + 16 * i; of c, number i lies in row lane / 4 (+ 8
// for i >= 2), column lane % 4 * 2 + i % 2.
void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Warp& warp = warp_now();
  const size_t lane = block.now % kWarp;
  for (size_t i = 0; i < 4; ++i) warp.a[lane][i] = a[i];
  for (size_t i = 0; i < 2; ++i) warp.b[lane][i] = b[i];
  wait(warp.barrier, kWarp);
  for (size_t i = 0; i < 4; ++i) {
    const size_t row = lane / 4 + i / 2 * 8;
    const size_t column = lane % 4 * 2 + i % 2;
    for (size_t k = 0; k < 32; ++k) {
      const auto& of_a = warp.a[row % 8 * 4 + k % 16 / 4];
      const auto& of_b = warp.b[column * 4 + k % 16 / 4];
      c[i] += byte_of(of_a[row / 8 + k / 16 * 2], k % 4) * byte_of(of_b[k / 16], k % 4);
    }
  }
  wait(warp.barrier, kWarp);
}

// PTX ISA, "Matrix Fragments for mma.m16n8k16": of a, register i of a thread holds two elements of
// row lane / 4 (+ 8 for odd i) from column lane % 4 * 2 (+ 8 for i >= 2); of b, register i holds
// two of column lane / 4 from row lane % 4 * 2 + 8 * i; c as above.
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Warp& warp = warp_now();
  const size_t lane = block.now % kWarp;
  for (size_t i = 0; i < 8; ++i) warp.a_floats[lane][i] = half_of(a[i / 2], i % 2);
  for (size_t i = 0; i < 4; ++i) warp.b_floats[lane][i] = half_of(i < 2 ? b0 : b1, i % 2);
  wait(warp.barrier, kWarp);
  for (size_t i = 0; i < 4; ++i) {
    const size_t row = lane / 4 + i / 2 * 8;
    const size_t column = lane % 4 * 2 + i % 2;
    for (size_t k = 0; k < 16; ++k) {
      const auto& of_a = warp.a_floats[row % 8 * 4 + k % 8 / 2];
      const auto& of_b = warp.b_floats[column * 4 + k % 8 / 2];
      c[i] += of_a[(row / 8 + k / 8 * 2) * 2 + k % 2] * of_b[k / 8 * 2 + k % 2];
    }
  }
  wait(warp.barrier, kWarp);
}

void load_matrices(uint32_t (&words)[4], const uint16_t* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) fail("a matrix's row is not aligned");
  Warp& warp = warp_now();
  const size_t lane = block.now % kWarp;
  warp.values[lane] = reinterpret_cast<uintptr_t>(row);
  wait(warp.barrier, kWarp);
  const auto element = [&](size_t matrix, size_t r, size_t column) -> uint32_t {
    return reinterpret_cast<const uint16_t*>(warp.values[matrix * 8 + r])[column];
  };
  for (size_t m = 0; m < 4; ++m) {
    const size_t first = lane / 4;
    const size_t second = lane % 4 * 2;
    words[m] = transposed ? element(m, second, first) | element(m, second + 1, first) << 16
                          : element(m, first, second) | element(m, first, second + 1) << 16;
  }
  wait(warp.barrier, kWarp);
}

void begin_copy(void* to, const void* from, size_t bytes, bool there) {
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 ||
      reinterpret_cast<uintptr_t>(from) % bytes != 0) {
    fail("a copy is not aligned");
  }
  std::memset(to, 0xFF, bytes);
  Fiber& fiber = block.fibers[block.now];
  fiber.copies.push_back({to, from, bytes, there, fiber.group});
}

void commit_copies() {
  ++block.fibers[block.now].group;
}

void wait_for_copies(size_t left) {
  Fiber& fiber = block.fibers[block.now];
  const auto waited = [&](const Copy& copy) { return copy.group + left < fiber.group; };
  for (const Copy& copy : fiber.copies) {
    if (!waited(copy)) continue;
    std::memset(copy.to, 0, copy.bytes);
    if (copy.there) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  fiber.copies.erase(std::remove_if(fiber.copies.begin(), fiber.copies.end(), waited),
                     fiber.copies.end());
}

float* dynamic_floats() {
  return block.dynamic.data();
}

void run(dim3 blocks, dim3 threads, size_t dynamic_bytes, const std::function<void()>& body) {
  if (block.stacks == nullptr) {
    void* data = ::mmap(nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) fail("no room for stacks");
    block.stacks = static_cast<uint8_t*>(data);
  }
  const OpenedPages opened(device_pages());
  block.threads = threads.x;
  if (block.threads % kWarp != 0 || block.threads > kMostThreads) fail("not a block of warps");
  block.body = &body;
  block.indices.grid = blocks;
  block.dynamic.assign(dynamic_bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
  for (unsigned y = 0; y < blocks.y; ++y) {
    for (unsigned x = 0; x < blocks.x; ++x) {
      block.indices.block = {x, y, 0};
      run_block();
    }
  }
}

}  // namespace jackscrew::cuda_emulation

// Memory: every byte is booked under a purpose, counted, and held against a hard budget.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/file.h"
#include "tensor/tensor.h"

namespace jackscrew {

enum class Purpose : uint8_t {
  weights,
  masters,
  adapters,
  projections,
  gradients,
  optimizer,
  activations,
  kv_cache,
  workspace,
  staging,
  communication,
  io
};
inline constexpr int kPurposes = 12;
const char* purpose_name(Purpose purpose);

// What is booked now, and what was booked at the highest total so far.
struct Ledger {
  std::array<int64_t, kPurposes> current{};
  std::array<int64_t, kPurposes> at_peak{};
  int64_t total = 0;
  int64_t peak = 0;
  std::string phase;    // what the program is doing now
  std::string peak_at;  // the phase in which the peak was reached
};

// Where bytes come from. `acquire` throws Error(does_not_fit) when the system has none left.
class Backing {
 public:
  virtual ~Backing() = default;
  virtual void* acquire(size_t bytes) = 0;
  virtual void release(void* data, size_t bytes) = 0;
  // The file that holds the bytes at an address that acquire() returned; empty where none does.
  virtual fs::path file_of(const void*) const { return {}; }
  // These bytes will be read soon.
  virtual void will_need(const void*, size_t) {}
  // A piece that acquire() returned will be replaced by another of its size, acquired before this
  // one is released.
  virtual void expect_replacement(const void*) {}
};

// Zeroed anonymous pages, 2 MiB-aligned and offered as huge pages when large.
std::unique_ptr<Backing> make_host_backing();
// No bytes at all: every address is null. The plan device books through it. `file` is what
// file_of() returns, for backings that stand for files.
std::unique_ptr<Backing> make_plan_backing(fs::path file = {});

// The bytes that a request for so many books, and the size of a file that holds them.
int64_t booked_bytes(int64_t bytes);

class Memory;

// Owns bytes taken from a Memory; gives them back on destruction. Must not outlive the Memory.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool empty() const { return memory_ == nullptr; }

 private:
  friend class Memory;
  Buffer(Memory* memory, void* data, int64_t bytes, Purpose purpose)
      : memory_(memory), data_(data), bytes_(bytes), purpose_(purpose) {}

  Memory* memory_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Purpose purpose_ = Purpose::workspace;
};

// Not thread-safe: allocation happens between parallel regions, never inside them.
class Memory {
 public:
  // `budget` in bytes; 0 means none. `name` ("device", "host") appears in errors.
  Memory(std::string name, std::unique_ptr<Backing> backing, int64_t budget);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Zeroed bytes, of which booked_bytes() are booked. Throws Error(does_not_fit) before the budget
  // is exceeded, and Error(generic) while allocation is forbidden.
  Buffer allocate(Purpose purpose, int64_t bytes);
  // Books bytes that the caller holds elsewhere, in a vector, as long as the Buffer lives, whose
  // data is null. Throws as allocate().
  Buffer book(Purpose purpose, int64_t bytes);

  // See Backing.
  fs::path file_of(const void* data) const { return backing_->file_of(data); }
  void will_need(const Tensor& tensor);
  void expect_replacement(const Tensor& tensor);

  void set_phase(const std::string& phase) { ledger_.phase = phase; }
  const Ledger& ledger() const { return ledger_; }

  // From here on allocate() is an error; see NoAllocation.
  void forbid_allocation(bool forbidden) { forbidden_ = forbidden; }

 private:
  friend class Buffer;
  // Returns the bytes that such a request will book. Throws as allocate().
  int64_t admit(Purpose purpose, int64_t bytes) const;
  Buffer enter(Purpose purpose, int64_t booked, void* data);
  void release(void* data, int64_t bytes, Purpose purpose);

  std::string name_;
  std::unique_ptr<Backing> backing_;
  int64_t budget_;
  bool forbidden_ = false;
  Ledger ledger_;
};

// Makes allocation an error while it lives: a training step holds one.
class NoAllocation {
 public:
  explicit NoAllocation(Memory& memory) : memory_(memory) { memory_.forbid_allocation(true); }
  ~NoAllocation() { memory_.forbid_allocation(false); }
  NoAllocation(const NoAllocation&) = delete;
  NoAllocation& operator=(const NoAllocation&) = delete;

 private:
  Memory& memory_;
};

// A stack of short-lived tensors over one Buffer. A measuring arena has no bound and records its
// high-water mark, which becomes the capacity of the real one: that is how a plan and a run agree
// to the byte.
class Arena {
 public:
  Arena() = default;
  // An arena of `capacity` bytes from `memory`.
  Arena(Memory& memory, Purpose purpose, int64_t capacity);
  // A measuring arena: null addresses, no bound.
  static Arena measuring();

  // A contiguous tensor, aligned to 64 bytes and not initialised, until the innermost Frame ends.
  // Throws Error(generic) beyond the capacity.
  Tensor tensor(DType dtype, std::initializer_list<int64_t> shape);

  int64_t used() const { return used_; }
  int64_t high_water() const { return high_water_; }
  int64_t capacity() const { return buffer_.bytes(); }
  void reset() { used_ = 0; }

  // Gives back, on destruction, everything taken from the arena since construction.
  class Frame {
   public:
    explicit Frame(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Frame() { arena_.used_ = mark_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Arena& arena_;
    int64_t mark_;
  };

 private:
  Buffer buffer_;
  int64_t used_ = 0;
  int64_t high_water_ = 0;
  bool measuring_ = false;
};

// A tensor that owns its bytes.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  OwnedTensor(Memory& memory, Purpose purpose, DType dtype, std::initializer_list<int64_t> shape);
  const Tensor& view() const { return view_; }
  bool empty() const { return view_.empty(); }

 private:
  Buffer buffer_;
  Tensor view_;
};

}  // namespace jackscrew

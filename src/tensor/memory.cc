#include "tensor/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/process_memory.h"
#include "base/text.h"

namespace jackscrew {

namespace {

// Cache lines and AVX-512 vectors are 64 bytes; so is what oneDNN wants of its buffers.
constexpr int64_t kAlignment = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// Below it, half a page more for each buffer would be too much: an adapter of rank 1 has thousands
// of buffers that book 64 bytes.
constexpr size_t kMapped = 16 * kPage;

class HostBacking : public Backing {
 public:
  void* acquire(size_t bytes) override {
    void* data = bytes < kMapped ? of_heap(bytes) : of_pages(bytes);
    if (data != nullptr) return data;
    // Where a limit is set, free memory says nothing.
    const auto limit = address_limit();
    throw SystemOutOfMemory(
        fmt::format("the system has no {} left to give", human_bytes(narrow<int64_t>(bytes))),
        limit ? fmt::format("raise the limit ({} is {})", limit->command, human_bytes(limit->bytes))
              : "close other programs",
        limit ? "what it leaves" : "what is free");
  }

  void release(void* data, size_t bytes) override {
    if (bytes < kMapped) return std::free(data);
    ::munmap(data, page_size(bytes));
  }

 private:
  // Null where the system has no more; so does of_pages().
  static void* of_heap(size_t bytes) {
    void* data = std::aligned_alloc(kAlignment, bytes);  // of booked_bytes(), so a multiple of it
    if (data != nullptr) std::memset(data, 0, bytes);
    return data;
  }

  static void* of_pages(size_t bytes) {
    const size_t mapped = mapped_size(bytes);
    void* data =
        ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    if (bytes < kHugePage) {
      populate(static_cast<uint8_t*>(data), page_size(bytes));
      return data;
    }
    // Trim to a 2 MiB boundary so that huge pages are possible from the first byte.
    const auto address = reinterpret_cast<uintptr_t>(data);
    const uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
    const size_t head = aligned - address;
    const size_t tail = mapped - head - page_size(bytes);
    if (head != 0) ::munmap(data, head);
    auto* out = reinterpret_cast<uint8_t*>(aligned);
    if (tail != 0) ::munmap(out + page_size(bytes), tail);
    ::madvise(out, page_size(bytes) / kHugePage * kHugePage, MADV_HUGEPAGE);
    populate(out, page_size(bytes));
    return out;
  }

  // Takes the pages now: what is booked is really there, and no step pays for page faults.
  static void populate(uint8_t* data, size_t bytes) {
    if (::madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
    // Kernels before 5.14 do not know that advice.
    for (size_t at = 0; at < bytes; at += kPage) static_cast<volatile uint8_t*>(data)[at] = 0;
  }

  static size_t page_size(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  static size_t mapped_size(size_t bytes) {
    return page_size(bytes) + (bytes < kHugePage ? 0 : kHugePage);
  }
};

class PlanBacking : public Backing {
 public:
  explicit PlanBacking(fs::path file) : file_(std::move(file)) {}
  void* acquire(size_t) override { return nullptr; }
  void release(void*, size_t) override {}
  fs::path file_of(const void*) const override { return file_; }

 private:
  fs::path file_;
};

}  // namespace

const char* purpose_name(Purpose purpose) {
  static constexpr std::array<const char*, kPurposes> kNames = {
      "weights",     "masters",  "adapters",  "projections", "gradients",     "optimizer",
      "activations", "kv_cache", "workspace", "staging",     "communication", "io"};
  return kNames[static_cast<size_t>(purpose)];
}

std::unique_ptr<Backing> make_host_backing() {
  return std::make_unique<HostBacking>();
}
std::unique_ptr<Backing> make_plan_backing(fs::path file) {
  return std::make_unique<PlanBacking>(std::move(file));
}

int64_t booked_bytes(int64_t bytes) {
  return round_up(bytes > 0 ? bytes : 1, kAlignment);
}

Buffer::~Buffer() {
  if (memory_ != nullptr) memory_->release(data_, bytes_, purpose_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      purpose_(other.purpose_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(purpose_, other.purpose_);
  return *this;
}

Memory::Memory(std::string name, std::unique_ptr<Backing> backing, int64_t budget)
    : name_(std::move(name)), backing_(std::move(backing)), budget_(budget) {
  ledger_.phase = "start";
}

Buffer Memory::allocate(Purpose purpose, int64_t bytes) {
  const int64_t booked = admit(purpose, bytes);
  return enter(purpose, booked, backing_->acquire(static_cast<size_t>(booked)));
}

Buffer Memory::book(Purpose purpose, int64_t bytes) {
  return enter(purpose, admit(purpose, bytes), nullptr);
}

int64_t Memory::admit(Purpose purpose, int64_t bytes) const {
  if (bytes < 0) fail(ErrorKind::generic, "allocation of {} bytes", bytes);
  const int64_t booked = booked_bytes(bytes);
  if (forbidden_) {
    fail(ErrorKind::generic, "{} bytes of {} asked for inside a training step", bytes,
         purpose_name(purpose));
  }
  const int64_t total = checked_add(ledger_.total, booked);
  if (budget_ > 0 && total > budget_) {
    throw Error(ErrorKind::does_not_fit,
                fmt::format("{} memory: {} more for {} would make {}, over the budget of {}", name_,
                            human_bytes(booked), purpose_name(purpose), human_bytes(total),
                            human_bytes(budget_)),
                "see what takes the memory with `jackscrew plan`");
  }
  return booked;
}

Buffer Memory::enter(Purpose purpose, int64_t booked, void* data) {
  ledger_.current[static_cast<size_t>(purpose)] += booked;
  ledger_.total += booked;
  if (ledger_.total > ledger_.peak) {
    ledger_.peak = ledger_.total;
    ledger_.at_peak = ledger_.current;
    ledger_.peak_at = ledger_.phase;
  }
  return Buffer(this, data, booked, purpose);
}

void Memory::release(void* data, int64_t bytes, Purpose purpose) {
  if (data != nullptr) backing_->release(data, static_cast<size_t>(bytes));
  ledger_.current[static_cast<size_t>(purpose)] -= bytes;
  ledger_.total -= bytes;
}

void Memory::will_need(const Tensor& tensor) {
  if (tensor.raw() != nullptr) {
    backing_->will_need(tensor.raw(), static_cast<size_t>(tensor.bytes()));
  }
}

void Memory::expect_replacement(const Tensor& tensor) {
  if (tensor.raw() != nullptr) backing_->expect_replacement(tensor.raw());
}

Arena::Arena(Memory& memory, Purpose purpose, int64_t capacity)
    : buffer_(memory.allocate(purpose, capacity)) {}

Arena Arena::measuring() {
  Arena arena;
  arena.measuring_ = true;
  return arena;
}

Tensor Arena::tensor(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor view(nullptr, dtype, shape);
  const int64_t end = checked_add(used_, round_up(view.bytes(), kAlignment));
  if (!measuring_ && end > buffer_.bytes()) {
    fail(ErrorKind::generic, "arena of {} bytes cannot hold {} more for {}", buffer_.bytes(),
         view.bytes(), view.describe());
  }
  if (buffer_.data() != nullptr) {
    view = Tensor(static_cast<uint8_t*>(buffer_.data()) + used_, dtype, shape);
  }
  used_ = end;
  if (used_ > high_water_) high_water_ = used_;
  return view;
}

OwnedTensor::OwnedTensor(Memory& memory, Purpose purpose, DType dtype,
                         std::initializer_list<int64_t> shape)
    : view_(nullptr, dtype, shape) {
  buffer_ = memory.allocate(purpose, view_.bytes());
  view_ = Tensor(buffer_.data(), dtype, shape);
}

}  // namespace jackscrew

#include "base/map_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

namespace jackscrew {

namespace {

struct GuardedMap {
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> size{0};  // 0: the slot guards nothing, or is about to guard another map
  std::atomic<bool> lost{false};
};

// A signal handler can reach only static data, and may not wait for a lock: whoever adds or removes
// a map holds one, the handler reads without.
constexpr uintptr_t kPage = 4096;
constexpr size_t kMostMaps = size_t{1} << 16;  // more than the largest models have masters in files
constinit std::array<GuardedMap, kMostMaps> guarded;
constinit std::atomic<size_t> used{0};  // slots of `guarded` that have ever been used
constinit std::atomic<int> lost_maps{0};
struct sigaction handled_before;

// Replaces the rest of the map that holds `address`, if one does, by zeros: nobody will need it,
// and page by page it would take a signal for each.
bool replace_by_zeros(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (size_t i = 0; i < used.load(); ++i) {
    GuardedMap& map = guarded[i];
    const uintptr_t begin = map.begin.load();
    const size_t size = map.size.load();
    if (at < begin || at - begin >= size) continue;
    const uintptr_t page = at / kPage * kPage;
    const void* zeros =
        ::mmap(reinterpret_cast<void*>(page), begin + size - page, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == MAP_FAILED) return false;
    if (!map.lost.exchange(true)) lost_maps.fetch_add(1);
    return true;
  }
  return false;
}

void handle(int, siginfo_t* information, void*) {
  const bool by_instruction = information->si_code > 0;  // not sent by some process
  if (by_instruction && replace_by_zeros(information->si_addr)) return;
  ::sigaction(SIGBUS, &handled_before, nullptr);  // and the instruction fails once more
  if (!by_instruction) ::raise(SIGBUS);           // when this has returned
}

// What is known of a map besides what the handler needs.
struct Known {
  size_t slot;  // in `guarded`
  fs::path path;
  dev_t device;
  ino_t inode;  // no other file has it while the map lives
  bool is_read_in_place = false;
};
// Shared by checks, which many threads make at a time.
constinit std::shared_mutex mutex;
std::map<const void*, Known>& known_maps() {
  static std::map<const void*, Known> maps;  // by address
  return maps;
}

[[noreturn]] void fail_lost(const fs::path& path, ErrorKind kind) {
  throw Unreadable(kind,
                   fmt::format("{}: the file was cut short, or its disk failed, while it was read",
                               path.string()),
                   "restore the file and run again; nothing may write to it while it is in use");
}

// The guarded map that holds `data`; nullptr: none. Call it with the lock held.
Known* known_map(const void* data) {
  const auto behind = known_maps().upper_bound(data);
  if (behind == known_maps().begin()) return nullptr;
  auto& [begin, known] = *std::prev(behind);
  const size_t offset = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(begin);
  return offset < guarded[known.slot].size.load() ? &known : nullptr;
}

bool has_lost_pages(const Known& known) {
  return guarded[known.slot].lost.load();
}

// Whether the file ends now where a page of the map goes on. One that was removed or replaced keeps
// its bytes as long as the map; one that ends with a page sends signals.
bool ends_within_page(const Known& known) {
  struct stat now {};
  if (::stat(known.path.c_str(), &now) != 0) return false;
  const bool is_same = now.st_dev == known.device && now.st_ino == known.inode;
  const auto size = static_cast<size_t>(now.st_size);
  return is_same && size < guarded[known.slot].size.load() && size % kPage != 0;
}

// The signal stack of one thread.
class SignalStack {
 public:
  SignalStack() {
    stack_t present = {};
    if (::sigaltstack(nullptr, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0) return;
    memory_.reset(new std::byte[kSize]);  // not touched before it is used
    stack_t stack = {};
    stack.ss_sp = memory_.get();
    stack.ss_size = kSize;
    if (::sigaltstack(&stack, nullptr) != 0) memory_.reset();
  }
  ~SignalStack() {
    if (memory_ == nullptr) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  // The widest registers of today take 11 KiB of it.
  static constexpr size_t kSize = size_t{64} << 10;
  std::unique_ptr<std::byte[]> memory_;  // null: the thread already has another one
};

}  // namespace

void guard_map(const void* data, size_t size, const fs::path& path, int descriptor) {
  struct stat info {};
  static_cast<void>(::fstat(descriptor, &info));  // a file that is open has what is asked
  const std::lock_guard lock(mutex);
  size_t slot = 0;
  while (slot < used.load() && guarded[slot].size.load() != 0) ++slot;
  if (slot == kMostMaps) return;  // one more than can be guarded
  known_maps()[data] = {slot, path, info.st_dev, info.st_ino};
  guarded[slot].begin.store(reinterpret_cast<uintptr_t>(data));
  guarded[slot].size.store(size);
  if (slot == used.load()) used.store(slot + 1);
}

void unguard_map(const void* data) {
  const std::lock_guard lock(mutex);
  const auto found = known_maps().find(data);
  if (found == known_maps().end()) return;
  GuardedMap& map = guarded[found->second.slot];
  map.size.store(0);
  if (map.lost.exchange(false)) lost_maps.fetch_sub(1);
  known_maps().erase(found);
}

void read_in_place(const void* data) {
  const std::lock_guard lock(mutex);
  if (Known* const known = known_map(data)) known->is_read_in_place = true;
}

void check_map(const void* data, ErrorKind kind) {
  const std::shared_lock lock(mutex);
  const Known* const known = known_map(data);
  if (known == nullptr) return;
  if (has_lost_pages(*known) || ends_within_page(*known)) fail_lost(known->path, kind);
}

void check_pages(const void* data, ErrorKind kind) {
  if (lost_maps.load(std::memory_order_relaxed) == 0) return;
  const std::shared_lock lock(mutex);
  const Known* const known = known_map(data);
  if (known != nullptr && has_lost_pages(*known)) fail_lost(known->path, kind);
}

void check_maps() {
  const std::shared_lock lock(mutex);
  for (const auto& [data, known] : known_maps()) {
    if (has_lost_pages(known) || (known.is_read_in_place && ends_within_page(known))) {
      fail_lost(known.path, ErrorKind::model);
    }
  }
}

BusErrors::BusErrors() {
  ensure_signal_stack();
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigfillset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &handled_before);
}

BusErrors::~BusErrors() {
  ::sigaction(SIGBUS, &handled_before, nullptr);
}

void ensure_signal_stack() {
  static thread_local const SignalStack kStack;
}

}  // namespace jackscrew

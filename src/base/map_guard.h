// A map may outlive the bytes of its file: where another program truncates the file, or its disk
// fails, the kernel sends SIGBUS to the thread that reads the map, which by default ends the
// process without a word. Here the lost bytes become zeros instead, and the map counts as lost:
// whoever reads a map checks it before what was read is used for anything that lasts.
//
// The page in which a file ends sends no signal: behind the new end it reads as zeros. So a check
// looks at the file's size, too.
//
// Signals are handled only where the program asks for it (BusErrors): a library installs no
// handlers.
#pragma once

#include <cstddef>
#include <type_traits>

#include "base/error.h"
#include "base/file.h"

namespace jackscrew {

// Guards a map of the file `path`, open as `descriptor`, from after mmap() until just before
// munmap(). MappedFile does this itself.
void guard_map(const void* data, size_t size, const fs::path& path, int descriptor);
void unguard_map(const void* data);

// Says of the guarded map that holds `data`, weights of a model's file, that it is read again and
// again: check_maps() looks at its file's size, too. Others may be cut short once they are read.
void read_in_place(const void* data);

// Throws Unreadable(`kind`) naming the file where bytes of the guarded map that holds `data` were
// lost when they were read or written. Costs a system call.
void check_map(const void* data, ErrorKind kind = ErrorKind::model);
// The same, but for a file that ends within its last page now. Costs one look at a flag while no
// map is lost: for what is read in small pieces, which check_map() follows.
void check_pages(const void* data, ErrorKind kind = ErrorKind::model);
// check_pages() for any map, and check_map() for those that are read in place, as Error(model).
void check_maps();

// Returns what `read` returns, once it is sure that `read` saw the file's bytes. If bytes were lost
// it throws as check_map() does, rather than what `read` throws over zeros.
template <class Read>
auto read_whole(const MappedFile& file, const Read& read, ErrorKind kind = ErrorKind::model) {
  const auto check = [&] { check_map(file.bytes().data(), kind); };
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<const Read&>>) {
      read();
      check();
    } else {
      auto result = read();
      check();
      return result;
    }
  } catch (const Error&) {
    check();
    throw;
  }
}

// Handles SIGBUS in guarded maps as long as it lives; elsewhere the signal is handled as before.
// Make one in main().
class BusErrors {
 public:
  BusErrors();
  ~BusErrors();
  BusErrors(const BusErrors&) = delete;
  BusErrors& operator=(const BusErrors&) = delete;
};

// Gives the calling thread a signal stack until it ends, if it has none: for threads that run
// generated code, which may point the stack pointer into the heap (base/signals.h).
void ensure_signal_stack();

}  // namespace jackscrew

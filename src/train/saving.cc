#include "train/saving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/shell_word.h"
#include "base/temporary_place.h"
#include "formats/checkpoint.h"

namespace jackscrew {

namespace {

constexpr double kRetrySeconds = 30;
constexpr uintmax_t kMoreRoom = 1 << 16;  // bytes; less is the noise of logs and other programs

// Wherever it was moved to; 0 where it cannot be found.
uintmax_t room_at(OutputClaim& output_dir) {
  const fs::path* place = output_dir.find();
  if (place == nullptr) return 0;
  std::error_code error;
  const fs::space_info space = fs::space(*place, error);
  return error ? 0 : space.available;
}

// Creates a directory with an unpredictable name.
fs::path new_directory(const fs::path& place) {
  std::string name = (place / "jackscrew-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    fail(ErrorKind::generic, "cannot create {}: {}", name, std::strerror(errno));
  }
  return name;
}

// Returns when another try may be worthwhile, or when a stop is requested. `room` is what there was
// when the last one failed: what is freed while the user is told counts.
void wait_for_room(const std::atomic<bool>& stop, OutputClaim& output_dir, uintmax_t room) {
  const Stopwatch watch;
  while (!stop.load() && watch.seconds() < kRetrySeconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (room_at(output_dir) > room + kMoreRoom) return;
  }
}

// In a new directory, which is removed where the checkpoint cannot be written.
fs::path write_below(const fs::path& place,
                     const std::function<fs::path(const fs::path& directory)>& write_checkpoint) {
  const fs::path directory = new_directory(place);
  try {
    return write_checkpoint(directory);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(directory, ignored);
    throw;
  }
}

// While the result waits for disk space, a stop has another effect, so the phase says so.
void change_phase(const TrainConsole& console, RunPhase from, RunPhase to) {
  if (console.phase != nullptr) console.phase->compare_exchange_strong(from, to);
}

}  // namespace

bool write_or_warn(const std::string& what, const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::generic) throw;
    warn(fmt::format("{} is not written: {}", what, error.what()));
    return false;
  }
}

void write_if_possible(const std::string& what, const std::function<void()>& write) {
  try {
    write();
  } catch (const std::exception& exception) {
    warn(fmt::format("{} is not written: {}", what, error_of(exception).what()));
  }
}

bool take_save_request(const TrainConsole& console, OutputClaim& output_dir) {
  std::error_code ignored;
  const fs::path* output = output_dir.find();
  const bool by_file = output != nullptr && fs::remove(*output / kSaveTrigger, ignored);
  return console.take_save_request() || by_file;
}

void remove_replaced(const fs::path& output_dir, int64_t own, const fs::path& written, int64_t keep,
                     const fs::path& spared) try {
  sync_directory(output_dir);
  remove_checkpoints_after(output_dir, own, written);
  prune_checkpoints(output_dir, keep, spared);
} catch (const Error& error) {
  warn(fmt::format("older checkpoints are not removed: {}", error.what()));
}

void remove_abandoned(OutputClaim& output_dir, int64_t own) try {
  if (const fs::path* output = output_dir.find()) remove_checkpoints_after(*output, own);
} catch (const Error& error) {
  warn(fmt::format("checkpoints of an earlier run are not removed: {}", error.what()));
}

bool may_save_after(const Error& error) {
  return error.kind() != ErrorKind::non_finite && error.kind() != ErrorKind::device &&
         error.kind() != ErrorKind::interrupted;
}

void write_patiently(const TrainConsole& console, const std::string& what, OutputClaim& output_dir,
                     const std::function<void()>& write, const std::function<void()>& refused) {
  const auto place = [&] {
    const fs::path* found = output_dir.find();
    return found == nullptr ? fs::path() : *found;
  };
  for (bool first = true;;) {
    const fs::path before = place();
    try {
      write();
      return change_phase(console, RunPhase::waits_for_room, RunPhase::writes_result);
    } catch (const std::exception& exception) {
      const Error error = error_of(exception);
      if (!may_save_after(error)) throw;
      if (const fs::path now = place(); !now.empty() && now != before) continue;
      const uintmax_t room = room_at(output_dir);
      const bool may_wait = dynamic_cast<const FullDisk*>(&exception) != nullptr &&
                            console.stop != nullptr && !console.stop->load();
      if (may_wait) change_phase(console, RunPhase::writes_result, RunPhase::waits_for_room);
      if (std::exchange(first, false)) {
        warn(fmt::format("{} is not written: {}{}", what, error.what(),
                         may_wait ? "; waiting for space, and trying again every 30 s: free some, "
                                    "or press Ctrl-C to end the run"
                                  : ""));
        refused();
      }
      if (!may_wait) throw Error(error);
      wait_for_room(*console.stop, output_dir, room);
      if (console.stop->load()) throw;
    }
  }
}

std::vector<fs::path> places_elsewhere() {
  std::vector<fs::path> places{large_temporary_directory()};
  for (const char* place : {"/var/tmp", "/tmp"}) {
    if (std::ranges::find(places, place) == places.end()) places.emplace_back(place);
  }
  return places;
}

void write_elsewhere(ErrorKind kind, const Error& why,
                     const std::function<fs::path(const fs::path& directory)>& write_checkpoint,
                     const std::vector<fs::path>& places) {
  std::string last;
  for (const fs::path& place : places) {
    fs::path checkpoint;
    try {
      checkpoint = write_below(place, write_checkpoint);
    } catch (const Error& also) {
      last = also.what();
      continue;
    }
    throw Error(kind,
                fmt::format("{}; the checkpoint is {} instead", why.what(), checkpoint.string()),
                fmt::format("run the same command with resume={} to continue from there",
                            shell_word(checkpoint.string())));
  }
  throw Error(why.kind(), fmt::format("{}, and {}", why.what(), last), why.hint());
}

}  // namespace jackscrew

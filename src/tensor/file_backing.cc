#include "tensor/file_backing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/map_guard.h"
#include "base/text.h"

namespace jackscrew {

namespace {

[[noreturn]] void refuse(const std::string& what, const fs::path& path, int reason) {
  const std::string text = fmt::format("cannot {} {}: {}", what, path.string(),
                                       std::error_code(reason, std::generic_category()).message());
  if (reason == ENOSPC || reason == EDQUOT) {
    throw FullDisk(ErrorKind::generic, text,
                   "free some of the disk, or keep the masters in memory: master=ram");
  }
  if (reason == ENOMEM) {  // each piece is a map of its own, and a process may have some 65000
    throw Error(ErrorKind::does_not_fit, text,
                "raise vm.max_map_count (sysctl) or `ulimit -v`, or keep the masters in memory: "
                "master=ram");
  }
  throw Error(
      ErrorKind::generic, text,
      "give an output_dir in a place that can be written to, or keep the masters in memory: "
      "master=ram");
}

DirectoryHandle make_anew(const fs::path& directory) {
  std::error_code error;
  fs::remove_all(directory, error);  // what a killed run left
  if (!error) fs::create_directories(directory, error);
  if (error) {
    // The rank that reports this may have been started in another directory.
    std::error_code unknown;
    const fs::path whole = fs::absolute(directory, unknown);
    refuse("make", unknown ? directory : whole, error.value());
  }
  return DirectoryHandle(directory);
}

}  // namespace

FileBacking::FileBacking(const fs::path& directory) : directory_(make_anew(directory)) {}

FileBacking::~FileBacking() {
  for (const auto& [data, piece] : pieces_) remove(piece.name);
  for (const auto& [bytes, names] : spares_) {
    for (const std::string& name : names) remove(name);
  }
  for (const std::string& name : std::exchange(unremoved_, {})) remove(name);
  // By name, which another directory may have by now: that one is removed only if it is empty.
  std::error_code ignored;
  if (const auto path = directory_.path()) fs::remove(*path, ignored);
}

std::string FileBacking::new_file(size_t bytes) {
  std::string name = fmt::format("{:08}.bin", next_);
  const int file =
      ::openat(directory_.descriptor(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) refuse("create", directory_.shown() / name, errno);
  ++next_;
  // Without room reserved, a full disk would kill the program in the middle of a store.
  const int refused = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  ::close(file);
  if (refused != 0) {
    remove(name);
    refuse(fmt::format("reserve {} in", human_bytes(narrow<int64_t>(bytes))),
           directory_.shown() / name, refused);
  }
  return name;
}

std::string FileBacking::take_spare(size_t bytes) {
  std::vector<std::string>& spares = spares_[bytes];
  if (spares.empty()) return {};
  std::string name = std::move(spares.back());
  spares.pop_back();
  return name;
}

void FileBacking::remove(const std::string& name) {
  const int refused = ::unlinkat(directory_.descriptor(), name.c_str(), 0);
  if (refused != 0 && errno != ENOENT) unremoved_.push_back(name);
}

void* FileBacking::acquire(size_t bytes) {
  std::string name;
  bool is_new = true;
  try {
    name = new_file(bytes);
  } catch (const Error&) {
    name = take_spare(bytes);
    if (name.empty()) throw;
    is_new = false;
  }
  const int file = ::openat(directory_.descriptor(), name.c_str(), O_RDWR | O_CLOEXEC);
  void* data =
      file < 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int reason = errno;
  if (data != MAP_FAILED) guard_map(data, bytes, directory_.shown() / name, file);
  if (file >= 0) ::close(file);
  if (data == MAP_FAILED) {
    remove(name);
    refuse("map", directory_.shown() / name, reason);
  }
  if (!is_new) std::memset(data, 0, bytes);
  pieces_[data] = {std::move(name)};
  return data;
}

void FileBacking::release(void* data, size_t bytes) {
  unguard_map(data);  // before others get these addresses
  ::munmap(data, bytes);
  std::string name = std::move(pieces_[data].name);
  pieces_.erase(data);
  struct stat info {};
  const bool shared =
      ::fstatat(directory_.descriptor(), name.c_str(), &info, 0) != 0 || info.st_nlink > 1;
  std::vector<std::string>& spares = spares_[bytes];
  if (!shared && spares.size() < wanted_spares_[bytes]) return spares.push_back(std::move(name));
  remove(name);
}

fs::path FileBacking::file_of(const void* data) const {
  const auto found = pieces_.find(data);
  return found == pieces_.end() ? fs::path() : directory_.shown() / found->second.name;
}

void FileBacking::will_need(const void* data, size_t bytes) {
  ::madvise(const_cast<void*>(data), bytes, MADV_WILLNEED);
}

void FileBacking::expect_replacement(const void* data) {
  pieces_.at(data).is_replaced = true;
}

void FileBacking::reserve(Replaced replaced) {
  const auto before = std::exchange(wanted_spares_, {});
  for (const auto& [data, piece] : pieces_) {
    struct stat info {};
    if (!piece.is_replaced) continue;
    if (::fstatat(directory_.descriptor(), piece.name.c_str(), &info, 0) != 0) continue;
    size_t& wanted = wanted_spares_[static_cast<size_t>(info.st_size)];
    wanted = replaced == Replaced::each ? std::max<size_t>(wanted, 1) + 1 : 1;
  }
  try {
    for (const auto& [bytes, wanted] : wanted_spares_) {
      std::vector<std::string>& spares = spares_[bytes];
      while (spares.size() < wanted) spares.push_back(new_file(bytes));
    }
  } catch (const Error&) {
    wanted_spares_ = before;
    remove_excess();
    throw;
  }
  remove_excess();
}

void FileBacking::remove_excess() {
  for (auto& [bytes, spares] : spares_) {
    for (; spares.size() > wanted_spares_[bytes]; spares.pop_back()) remove(spares.back());
  }
}

}  // namespace jackscrew

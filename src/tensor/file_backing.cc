#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <system_error>
#include <utility>

#include "base/map_guard.h"
#include "base/text.h"
#include "tensor/memory.h"

namespace jackscrew {

namespace {

[[noreturn]] void refuse(const char* what, const fs::path& path, int reason) {
  throw Error(ErrorKind::generic,
              fmt::format("cannot {} {}: {}", what, path.string(),
                          std::error_code(reason, std::generic_category()).message()),
              reason == ENOSPC ? "free some of the disk, or keep the masters in memory: master=ram"
                               : std::string());
}

class FileBacking : public Backing {
 public:
  explicit FileBacking(fs::path directory) : directory_(std::move(directory)) {
    std::error_code error;
    fs::remove_all(directory_, error);  // what a run left that was killed
    if (!error) fs::create_directories(directory_, error);
    if (error) refuse("make", directory_, error.value());
  }

  ~FileBacking() override {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }

  void* acquire(size_t bytes) override {
    const fs::path path = directory_ / fmt::format("{:08}.bin", next_);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) refuse("create", path, errno);
    // Without room reserved, a full disk would kill the program in the middle of a store.
    const int reserved = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
    void* data = reserved != 0
                     ? MAP_FAILED
                     : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int reason = reserved != 0 ? reserved : errno;
    ::close(file);
    if (data == MAP_FAILED) {
      std::error_code ignored;
      fs::remove(path, ignored);
      refuse(fmt::format("reserve {} in", human_bytes(narrow<int64_t>(bytes))).c_str(), path,
             reason);
    }
    ++next_;
    paths_[data] = path;
    guard_map(data, bytes, path);
    return data;
  }

  void release(void* data, size_t bytes) override {
    unguard_map(data);  // before others get these addresses
    ::munmap(data, bytes);
    std::error_code ignored;
    fs::remove(paths_[data], ignored);
    paths_.erase(data);
  }

  fs::path file_of(const void* data) const override {
    const auto found = paths_.find(data);
    return found == paths_.end() ? fs::path() : found->second;
  }

  void will_need(const void* data, size_t bytes) override {
    ::madvise(const_cast<void*>(data), bytes, MADV_WILLNEED);
  }

 private:
  fs::path directory_;
  int64_t next_ = 0;
  std::map<const void*, fs::path> paths_;  // by address
};

}  // namespace

std::unique_ptr<Backing> make_file_backing(fs::path directory) {
  return std::make_unique<FileBacking>(std::move(directory));
}

}  // namespace jackscrew

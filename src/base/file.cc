#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/map_guard.h"

namespace jackscrew {

namespace {

[[noreturn]] void fail_system(ErrorKind kind, const char* action, const fs::path& path) {
  const int code = errno;
  const std::string what =
      fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(code));
  if (code == ENOSPC || code == EDQUOT) {
    throw FullDisk(kind, what, "free some space on that disk and run again");
  }
  throw Error(kind, what,
              code == ENOENT  ? "check the path"
              : code == EFBIG ? "raise the file size limit (ulimit -f) and run again"
                              : "");
}

const char* kind_of_file(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// Only ordinary files can be mapped.
void require_file(const fs::path& path, mode_t mode) {
  if (S_ISREG(mode)) return;
  throw Error(ErrorKind::model,
              fmt::format("{} is {}, not a file", path.string(), kind_of_file(mode)),
              S_ISDIR(mode) ? "" : "write its contents to a file, and give that");
}

// An open file descriptor, closed on scope exit.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  struct stat info {};
  // A look before the file is opened: that would wait for whoever writes to a pipe.
  if (::stat(path.c_str(), &info) == 0) require_file(path, info.st_mode);
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail_system(ErrorKind::model, "open", path);
  if (::fstat(file.fd, &info) != 0) fail_system(ErrorKind::model, "read", path);
  require_file(path, info.st_mode);
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (map == MAP_FAILED) fail_system(ErrorKind::model, "map", path);
  data_ = static_cast<const uint8_t*>(map);
  guard_map(data_, size_, path);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  unguard_map(data_);  // before others get these addresses
  ::munmap(const_cast<uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

void MappedFile::release(size_t offset, size_t size) const {
  check_map(data_);
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + size) / page * page;
  if (end > begin) {
    ::madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_DONTNEED);
  }
}

FileWriter::FileWriter(const fs::path& path, WriteMode mode) : path_(path) {
  file_ = std::fopen(path.c_str(), mode == WriteMode::append ? "abe" : "wbe");
  if (file_ == nullptr) fail_system(ErrorKind::generic, "create", path);
}

FileWriter::~FileWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

void FileWriter::write(const void* data, size_t size) {
  if (size != 0 && std::fwrite(data, 1, size, file_) != size) {
    fail_system(ErrorKind::generic, "write", path_);
  }
}

void FileWriter::flush() {
  if (std::fflush(file_) != 0) fail_system(ErrorKind::generic, "write", path_);
}

void FileWriter::close() {
  flush();
  if (::fsync(::fileno(file_)) != 0) fail_system(ErrorKind::generic, "sync", path_);
  std::FILE* file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0) fail_system(ErrorKind::generic, "close", path_);
}

std::string read_text(const fs::path& path, int64_t max_bytes) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > static_cast<size_t>(max_bytes)) {
    fail(ErrorKind::model, "{} has {} bytes; such a file may have at most {}", path.string(),
         bytes.size(), max_bytes);
  }
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  check_map(bytes.data());
  return text;
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    errno = error.value();
    fail_system(ErrorKind::generic, "create", path);
  }
}

void sync_directory(const fs::path& path) {
  const Descriptor directory{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.fd < 0) fail_system(ErrorKind::generic, "open", path);
  // Some file systems cannot sync a directory; their renames are as durable as they get.
  if (::fsync(directory.fd) != 0 && errno != EINVAL) fail_system(ErrorKind::generic, "sync", path);
}

void write_text_atomic(const fs::path& path, std::string_view text) {
  const fs::path temporary = path.string() + ".part";
  try {
    FileWriter writer(temporary);
    writer.write(text);
    writer.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      fail_system(ErrorKind::generic, "rename to", path);
    }
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_directory(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

DirectoryLock::DirectoryLock(const fs::path& directory)
    : descriptor_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail_system(ErrorKind::generic, "open", directory);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(descriptor_);
  throw Error(ErrorKind::generic, fmt::format("another run is writing to {}", directory.string()),
              "wait for it, stop it, or choose another directory");
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

AtomicDirectory::AtomicDirectory(const fs::path& final_path)
    : final_(final_path), temporary_(final_path.string() + ".part") {
  std::error_code error;
  fs::remove_all(temporary_, error);
  make_directories(temporary_);
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit() {
  sync_directory(temporary_);
  const fs::path replaced = final_.string() + ".old";
  std::error_code ignored;
  fs::remove_all(replaced, ignored);
  const bool existed = fs::exists(final_);
  if (existed && ::rename(final_.c_str(), replaced.c_str()) != 0) {
    fail_system(ErrorKind::generic, "move away", final_);
  }
  if (::rename(temporary_.c_str(), final_.c_str()) != 0) {
    fail_system(ErrorKind::generic, "rename to", final_);
  }
  sync_directory(final_.has_parent_path() ? final_.parent_path() : fs::path("."));
  fs::remove_all(replaced, ignored);
  committed_ = true;
}

}  // namespace jackscrew

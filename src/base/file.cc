#include "base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "base/console.h"
#include "base/directory.h"
#include "base/error.h"
#include "base/map_guard.h"
#include "base/system_failure.h"

namespace jackscrew {

namespace {

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

int open_to_read(const fs::path& path) {
  struct stat info {};
  // A look before the file is opened: that would wait for whoever writes to a pipe.
  if (::stat(path.c_str(), &info) == 0) require_file(path, info.st_mode);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_system(ErrorKind::model, "open", path);
  return descriptor;
}

[[noreturn]] void fail_to_make(const fs::path& directory, const std::error_code& error) {
  errno = error.value();
  fail_system(ErrorKind::generic, "create", directory);
}

void sync_parent(const fs::path& path) {
  sync_renamed(path.has_parent_path() ? path.parent_path() : fs::path("."), path);
}

[[noreturn]] void another_run_writes(const fs::path& path, const char* instead) {
  throw Error(ErrorKind::generic, fmt::format("another run is writing to {}", path.string()),
              fmt::format("wait for it, stop it, or choose another {}", instead));
}

// Whether another process holds a lock of it; if not, this one does, where the file system has
// locks.
bool is_held_by_another(int descriptor) {
  constexpr int kTries = 5;  // whoever only looks whether somebody holds it has it for a moment
  for (int tries = 0; tries < kTries; ++tries) {
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

bool is_at(int descriptor, const fs::path& path) {
  struct stat opened {
  }, there{};
  if (::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &there) == 0 &&
      opened.st_dev == there.st_dev && opened.st_ino == there.st_ino) {
    return true;
  }
  // Some file systems give a directory a new inode number whenever it is looked up.
  std::error_code error;
  const fs::path now = fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
  return !error && now == fs::canonical(path, error);
}

void remove_contents(const fs::path& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : entries_of(directory, error)) {
    if (!error) fs::remove_all(entry.path(), error);
  }
  if (!error) return;
  errno = error.value();
  fail_system(ErrorKind::generic, "empty", directory);
}

// As require_no_claim(). A shared lock: of what is open for reading alone there is no other on
// every file system.
void require_unclaimed(const fs::path& temporary, const fs::path& final_path) {
  const Descriptor probe{::open(temporary.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC)};
  if (probe.fd < 0 || ::flock(probe.fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  another_run_writes(final_path, "output");
}

// What a killed process left at a temporary name may be a directory where a file is to be, or a
// file where a directory is.
void remove_of_other_kind(const fs::path& temporary, const fs::path& final_path, bool is_file) {
  struct stat info {};
  if (::lstat(temporary.c_str(), &info) != 0) return;
  if (is_file ? !S_ISDIR(info.st_mode) : !S_ISREG(info.st_mode)) return;
  require_unclaimed(temporary, final_path);
  remove_tree(temporary);
}

// Gives `made` the name `final_path`. Returns where what stood there is afterwards: at `made`, but
// where the system refuses that.
fs::path put_in_place(const fs::path& made, const fs::path& final_path) {
  const fs::path replaced = made.string() + kReplacedSuffix;
  std::error_code ignored;
  if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0) {
    // Of a process that was killed between the renames below.
    fs::remove_all(replaced, ignored);
    return made;
  }
  const int refusal = errno;
  if (refusal == ENOENT) {  // nothing stood there
    if (::rename(made.c_str(), final_path.c_str()) != 0) {
      fail_system(ErrorKind::generic, "rename to", final_path);
    }
    fs::remove_all(replaced, ignored);  // as above
    return made;
  }
  // Not every file system can exchange two names.
  fs::remove_all(replaced, ignored);
  const bool stood = ::rename(final_path.c_str(), replaced.c_str()) == 0;
  if (!stood && errno != ENOENT) fail_system(ErrorKind::generic, "move away", final_path);
  if (::rename(made.c_str(), final_path.c_str()) != 0) {
    const int code = errno;
    if (stood) static_cast<void>(::rename(replaced.c_str(), final_path.c_str()));
    errno = code;
    fail_system(ErrorKind::generic, "rename to", final_path);
  }
  return ::rename(replaced.c_str(), made.c_str()) == 0 ? made : replaced;
}

// A new file for writing and for a map, without a name; nullptr, and errno, where there is none.
// Not every file system has O_TMPFILE.
std::FILE* open_nameless(const fs::path& beside) {
  std::string name = beside.string() + ".XXXXXX";
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  ::unlink(name.c_str());
  return ::fdopen(descriptor, "w+b");
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) {
  const Descriptor file{open_to_read(path)};
  *this = MappedFile(file.fd, path);
}

MappedFile::MappedFile(int descriptor, const fs::path& path) : path_(path) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) fail_system(ErrorKind::model, "read", path);
  require_file(path, info.st_mode);
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (map == MAP_FAILED) fail_system(ErrorKind::model, "map", path);
  data_ = static_cast<const uint8_t*>(map);
  guard_map(data_, size_, path, descriptor);
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
  file_ = mode == WriteMode::nameless
              ? open_nameless(path)
              : std::fopen(path.c_str(), mode == WriteMode::append ? "abe" : "wbe");
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

MappedFile FileWriter::close_mapped() {
  flush();
  MappedFile map(::fileno(file_), path_);
  std::fclose(std::exchange(file_, nullptr));
  return map;
}

fs::path named_path(fs::path path) {
  const auto without_slash = [](fs::path at) {
    while (!at.has_filename() && at.has_parent_path() && at != at.root_path()) {
      at = at.parent_path();
    }
    return at;
  };
  path = without_slash(std::move(path));
  if (path.filename() != "." && path.filename() != "..") return path;
  std::error_code unknown;
  const fs::path full = fs::weakly_canonical(path, unknown);
  return unknown ? path : without_slash(full);
}

std::string from_where(const fs::path& path) {
  std::error_code unknown;
  const fs::path here = fs::current_path(unknown);
  if (path.is_absolute() || unknown) return {};
  return fmt::format("; a path counts from the current directory, {}", here.string());
}

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code missing;
  return fs::equivalent(a, b, missing) && !missing;
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

std::string read_beginning(const fs::path& path, size_t bytes) {
  const Descriptor file{open_to_read(path)};
  std::string out(bytes, '\0');
  size_t size = 0;
  while (size < bytes) {
    const ssize_t read = ::read(file.fd, out.data() + size, bytes - size);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) fail_system(ErrorKind::model, "read", path);
    if (read == 0) break;
    size += static_cast<size_t>(read);
  }
  out.resize(size);
  return out;
}

std::optional<int64_t> file_size_limit() {
  struct rlimit limit {};
  constexpr rlim_t kMost = std::numeric_limits<int64_t>::max();
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur > kMost) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

void rename_file(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_system(ErrorKind::generic, "rename to", to);
}

void rename_file_in(int directory, const std::string& from, const std::string& to,
                    const fs::path& shown) {
  if (::renameat(directory, from.c_str(), directory, to.c_str()) == 0) return;
  fail_system(ErrorKind::generic, "rename to", shown / to);
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_to_make(path, error);
}

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directory(path, error);
  if (error) fail_to_make(path, error);
}

void sync_directory(const fs::path& path) {
  const Descriptor directory{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.fd < 0) fail_system(ErrorKind::generic, "open", path);
  // Some file systems cannot sync a directory; their renames are as durable as they get.
  if (::fsync(directory.fd) != 0 && errno != EINVAL) fail_system(ErrorKind::generic, "sync", path);
}

void sync_renamed(const fs::path& directory, const fs::path& written) {
  try {
    sync_directory(directory);
  } catch (const Error& error) {
    warn(fmt::format("{} is written, but the disk does not confirm that it keeps it: {}",
                     written.string(), error.what()));
  }
}

namespace {

// Whoever wrote the files, those that are mapped and linked included. Clean ones take no time.
void sync_tree(const fs::path& directory) {
  for (const fs::directory_entry& entry : entries_of(directory)) {
    std::error_code error;
    const fs::file_type type = entry.symlink_status(error).type();
    if (error) fail(ErrorKind::generic, "cannot list {}: {}", directory.string(), error.message());
    if (type == fs::file_type::directory) {
      sync_tree(entry.path());
    } else if (type == fs::file_type::regular) {
      const Descriptor file{::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC)};
      if (file.fd < 0) fail_system(ErrorKind::generic, "open", entry.path());
      if (::fsync(file.fd) != 0) fail_system(ErrorKind::generic, "sync", entry.path());
    }
  }
  sync_directory(directory);
}

}  // namespace

void write_text_atomic(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  FileWriter writer(file.path());
  writer.write(text);
  writer.close();
  file.commit();
}

DirectoryLock::DirectoryLock(const fs::path& directory)
    : descriptor_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail_system(ErrorKind::generic, "open", directory);
  if (!is_held_by_another(descriptor_)) return;
  ::close(descriptor_);
  another_run_writes(directory, "directory");
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

bool DirectoryLock::is_at(const fs::path& path) const {
  return jackscrew::is_at(descriptor_, path);
}

void require_no_claim(const fs::path& final_path) {
  require_unclaimed(final_path.string() + kTemporarySuffix, final_path);
}

TemporaryClaim::TemporaryClaim(fs::path temporary, const fs::path& final_path, Kind kind)
    : path_(std::move(temporary)), descriptor_(-1) {
  const bool is_file = kind == Kind::file;
  const int flags = is_file ? O_RDWR | O_CREAT | O_NONBLOCK : O_RDONLY | O_DIRECTORY;
  // Its holder may give it its final name between our open and our lock: then there is none here.
  do {
    if (descriptor_ >= 0) ::close(descriptor_);
    remove_of_other_kind(path_, final_path, is_file);
    if (!is_file) make_directories(path_);
    descriptor_ = ::open(path_.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail_system(ErrorKind::generic, "create", path_);
    if (is_held_by_another(descriptor_)) {
      ::close(descriptor_);
      another_run_writes(final_path, "output");
    }
  } while (!is_at(descriptor_, path_));
  try {
    if (!is_file) {
      remove_contents(path_);
    } else if (::ftruncate(descriptor_, 0) != 0) {
      fail_system(ErrorKind::generic, "empty", path_);
    }
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    ::close(descriptor_);
    throw;
  }
}

TemporaryClaim::~TemporaryClaim() {
  std::error_code ignored;
  if (!released_ && is_at(descriptor_, path_)) fs::remove_all(path_, ignored);
  ::close(descriptor_);
}

void TemporaryClaim::release() {
  released_ = true;
  ::flock(descriptor_, LOCK_UN);
}

void TemporaryClaim::require_in_place() const {
  if (is_at(descriptor_, path_)) return;
  throw Error(ErrorKind::generic,
              fmt::format("{} was moved or removed while it was written", path_.string()),
              "run the command again");
}

AtomicFile::AtomicFile(const fs::path& final_path)
    : final_(final_path),
      temporary_(final_path.string() + kTemporarySuffix, final_path, TemporaryClaim::Kind::file) {}

void AtomicFile::commit() {
  temporary_.require_in_place();
  rename_file(path(), final_);
  temporary_.release();
  sync_parent(final_);
}

AtomicDirectory::AtomicDirectory(const fs::path& final_path, const char* suffix)
    : final_(final_path),
      temporary_(final_path.string() + suffix, final_path, TemporaryClaim::Kind::directory) {}

void AtomicDirectory::sync() const {
  temporary_.require_in_place();
  sync_tree(path());
}

void AtomicDirectory::commit(const std::function<void(const fs::path& replaced)>& remove) {
  sync();
  temporary_.require_in_place();
  std::error_code ignored;
  const bool replaces = fs::exists(fs::symlink_status(final_, ignored));
  // What is replaced gets the temporary name until it is removed, and nobody else may take it.
  const Descriptor replaced{::open(final_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  if (replaced.fd >= 0 && is_held_by_another(replaced.fd)) another_run_writes(final_, "output");
  const fs::path moved = put_in_place(path(), final_);
  temporary_.release();
  if (replaces && remove) {
    remove(moved);
  } else if (replaces) {
    fs::remove_all(moved, ignored);
  }
  sync_parent(final_);
}

}  // namespace jackscrew

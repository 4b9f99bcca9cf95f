// A limit of this process (`ulimit`) for as long as a test wants it.
#pragma once

#include <sys/resource.h>

#include <csignal>

namespace jackscrew {

class ResourceLimit {
 public:
  // `resource` is RLIMIT_FSIZE, RLIMIT_NOFILE ...
  ResourceLimit(int resource, rlim_t limit) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit now{limit, before_.rlim_max};
    ::setrlimit(resource_, &now);
  }
  ~ResourceLimit() { ::setrlimit(resource_, &before_); }
  ResourceLimit(const ResourceLimit&) = delete;
  ResourceLimit& operator=(const ResourceLimit&) = delete;

 private:
  int resource_;
  rlimit before_{};
};

// While it lives no file may be larger than a page: that stands for a disk without room.
class NoRoom {
 private:
  struct SignalIgnored {
    void (*handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
    ~SignalIgnored() { std::signal(SIGXFSZ, handler); }
  };

  SignalIgnored signal_;
  ResourceLimit limit_{RLIMIT_FSIZE, 4096};
};

}  // namespace jackscrew

// The device of a session with its memories, and what every part of the session uses there: scratch
// memory, and the scalars of a step.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "kernels/context.h"
#include "kernels/device.h"
#include "recipe/recipe.h"

namespace jackscrew {

class FileBacking;

// The arenas' capacities in bytes, found by rehearsing on the plan device.
struct ArenaSizes {
  int64_t scratch = 0, stash = 0, staging = 0;
  int64_t gradients = 0;  // of the buffer that gradients share, with update=fused
  int64_t kv_cache = 0;   // where nothing is trained; else it lies in the stash
};

enum class SessionMode {
  measure,  // on the plan device; arenas measure how much they need
  book,     // on the plan device, with the arenas of the plan
  run
};

// Wraps the Ops, between the model and the hardware. Empty: they stay as they are.
using OpsWrapper = std::function<std::unique_ptr<Ops>(std::unique_ptr<Ops>)>;

// The device that the recipe chooses. Throws as open_device() does.
std::unique_ptr<Device> open_device(const Recipe& recipe);

class SessionDevice {
 public:
  // Takes scratch memory and scalars. `sizes` are read unless arenas measure. A null `device`: the
  // recipe's.
  SessionDevice(const Recipe& recipe, SessionMode mode, const ArenaSizes& sizes,
                std::shared_ptr<const Device> device, const OpsWrapper& wrap);
  SessionDevice(const SessionDevice&) = delete;
  SessionDevice& operator=(const SessionDevice&) = delete;

  const Device& hardware() const { return *hardware_; }
  bool measures() const { return !sizes_; }
  Ops& ops() { return *ops_; }
  Memory& memory() { return *memory_; }
  const Memory& memory() const { return *memory_; }
  Memory& host() { return *host_; }
  const Memory& host() const { return *host_; }
  // Where masters wait: on the host or, after keep_masters_in(), in files of that directory.
  Memory& masters() { return disk_ ? *disk_ : *host_; }
  void keep_masters_in(const fs::path& directory);
  Ledger disk_ledger() const { return disk_ ? disk_->ledger() : Ledger(); }
  // As FileBacking::reserve(), where masters lie in files.
  void reserve_replaced_master();   // one at a time
  void reserve_each_master_anew();  // before a checkpoint gives their files a second name

  Arena make_arena(Purpose purpose, int64_t ArenaSizes::*size);
  // f32 [rows, cols] on the host, for what goes to other ranks. Empty where they can read the
  // device's memory.
  OwnedTensor make_staged(int64_t rows, int64_t cols);
  Arena& scratch() { return scratch_; }

  Context context(bool training) { return {*ops_, scratch_, scalars(), training}; }
  // In device memory; null on the plan device.
  StepScalars* scalars() { return static_cast<StepScalars*>(scalars_.view().raw()); }
  // Copies the first `bytes` of the scalars to the device.
  void write_scalars(const StepScalars& scalars, int64_t bytes);
  StepScalars read_scalars();
  // The f64 at byte `offset` of the scalars.
  double read_sum(size_t offset);
  void write_sum(size_t offset, double sum);

 private:
  Tensor sum_at(size_t offset);

  std::optional<ArenaSizes> sizes_;  // absent while measuring
  bool plans_only_;
  std::shared_ptr<const Device> hardware_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Memory> host_;
  FileBacking* master_files_ = nullptr;  // the backing of disk_; null on the plan device
  std::unique_ptr<Memory> disk_;         // masters in files; null: they lie in host_
  Arena scratch_;
  OwnedTensor scalars_;  // StepScalars
};

}  // namespace jackscrew

#include "session/session_device.h"

#include "tensor/file_backing.h"

namespace jackscrew {

std::unique_ptr<Device> open_device(const Recipe& recipe) {
  return open_device(recipe.device, {.threads = recipe.threads,
                                     .isa = choose_isa(recipe.isa),
                                     .environments = recipe.python_environments,
                                     .attention = recipe.attention});
}

SessionDevice::SessionDevice(const Recipe& recipe, SessionMode mode, const ArenaSizes& sizes,
                             std::shared_ptr<const Device> device, const OpsWrapper& wrap)
    : sizes_(mode != SessionMode::measure ? std::optional(sizes) : std::nullopt),
      plans_only_(mode != SessionMode::run),
      hardware_(device ? std::move(device) : open_device(recipe)) {
  memory_ = std::make_unique<Memory>("device",
                                     plans_only_ ? make_plan_backing() : hardware_->make_backing(),
                                     plans_only_ ? 0 : recipe.device_memory.value_or(0));
  ops_ = plans_only_ ? hardware_->make_plan_ops(*memory_) : hardware_->make_ops(*memory_);
  if (wrap) ops_ = wrap(std::move(ops_));
  host_ = std::make_unique<Memory>("host", plans_only_ ? make_plan_backing() : make_host_backing(),
                                   plans_only_ ? 0 : recipe.host_memory.value_or(0));
  memory_->set_phase("load");
  scratch_ = make_arena(Purpose::workspace, &ArenaSizes::scratch);
  scalars_ = OwnedTensor(*memory_, Purpose::workspace, DType::u8, {sizeof(StepScalars)});
  write_scalars(StepScalars{}, sizeof(StepScalars));
}

void SessionDevice::keep_masters_in(const fs::path& directory) {
  std::unique_ptr<Backing> backing;
  if (plans_only_) {
    backing = make_plan_backing(directory);
  } else {
    auto files = std::make_unique<FileBacking>(directory);
    master_files_ = files.get();
    backing = std::move(files);
  }
  disk_ = std::make_unique<Memory>("disk", std::move(backing), 0);
}

void SessionDevice::reserve_replaced_master() {
  if (master_files_ != nullptr) master_files_->reserve(FileBacking::Replaced::one_at_a_time);
}

void SessionDevice::reserve_each_master_anew() {
  if (master_files_ != nullptr) master_files_->reserve(FileBacking::Replaced::each);
}

Arena SessionDevice::make_arena(Purpose purpose, int64_t ArenaSizes::*size) {
  return sizes_ ? Arena(*memory_, purpose, (*sizes_).*size) : Arena::measuring();
}

OwnedTensor SessionDevice::make_staged(int64_t rows, int64_t cols) {
  if (hardware_->shares_host_memory()) return {};
  return {*host_, Purpose::communication, DType::f32, {rows, cols}};
}

void SessionDevice::write_scalars(const StepScalars& scalars, int64_t bytes) {
  StepScalars copy = scalars;
  ops_->copy(scalars_.view().columns(0, bytes), Tensor(&copy, DType::u8, {bytes}));
}

StepScalars SessionDevice::read_scalars() {
  StepScalars scalars{};
  ops_->copy(Tensor(&scalars, DType::u8, {sizeof(StepScalars)}), scalars_.view());
  return scalars;
}

Tensor SessionDevice::sum_at(size_t offset) {
  const auto begin = static_cast<int64_t>(offset);
  return scalars_.view().columns(begin, begin + int64_t{sizeof(double)});
}

double SessionDevice::read_sum(size_t offset) {
  double sum = 0.0;
  ops_->copy(Tensor(&sum, DType::u8, {sizeof sum}), sum_at(offset));
  return sum;
}

void SessionDevice::write_sum(size_t offset, double sum) {
  ops_->copy(sum_at(offset), Tensor(&sum, DType::u8, {sizeof sum}));
}

}  // namespace jackscrew

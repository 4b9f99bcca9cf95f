#include "conversion/planned_source.h"

#include "base/error.h"

namespace jackscrew {

StoredTensor& PlannedSource::add(const WeightSpec& weight, FormatPointer format) {
  StoredTensor& tensor = tensors_[weight.name];
  tensor.name = weight.name;
  tensor.format = std::move(format);
  tensor.shape = weight.shape();
  return tensor;
}

namespace {

[[noreturn]] void fail_of_values() {
  fail(ErrorKind::generic, "a planned model has no values");
}

}  // namespace

void PlannedSource::add_stored(const WeightSpec& weight, FormatPointer format) {
  add(weight, std::move(format)).transcode = [](int64_t, int, const StorageSink&) {
    fail_of_values();
  };
}

void PlannedSource::add_computed(const WeightSpec& weight, FormatPointer format) {
  add(weight, std::move(format)).computed = [](int64_t, int64_t) -> Tensor { fail_of_values(); };
}

const StoredTensor* PlannedSource::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> PlannedSource::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  return out;
}

}  // namespace jackscrew

// A stage_rig.h of models and batches as a session has them.
#pragma once

#include <vector>

#include "tests/support/golden.h"
#include "tests/support/stage_rig.h"

namespace jackscrew {

// A micro-batch that a stage can read: on a CPU, the device's memory is the host's.
class DeviceBatch {
 public:
  explicit DeviceBatch(const MicroBatch& micro, int64_t tokens_before = 0)
      : micro_(micro), target_rows_(micro.target_rows()), before_{tokens_before, 0} {
    batch_ = {view(micro_.ids),           view(micro_.positions),
              view(micro_.cu_seqlens),    view(target_rows_.rows),
              view(target_rows_.targets), Tensor(before_, DType::i64, {2})};
  }
  DeviceBatch(const DeviceBatch&) = delete;
  DeviceBatch& operator=(const DeviceBatch&) = delete;
  operator const Batch&() const { return batch_; }
  int64_t tokens() const { return batch_.tokens(); }

 private:
  static Tensor view(std::vector<int32_t>& values) {
    return {values.data(), DType::i32, {static_cast<int64_t>(values.size())}};
  }
  MicroBatch micro_;
  TargetRows target_rows_;
  int64_t before_[2];
  Batch batch_;
};

// The weights of a file. `files` must outlive the rigs.
inline RigModel model_of(const ModelFiles& files) {
  return {files.config,
          [&files](Ops& ops, Weight& weight, Arena& staging) {
            weight.load(ops, *files.source->find(weight.name()), staging);
          },
          [&files](Ops& ops, const Weight& weight, const Tensor& out, Arena& staging) {
            weight.read_original(ops, *files.source->find(weight.name()), out, staging);
          }};
}

}  // namespace jackscrew

#include "formats/checkpoint.h"

#include "tensor/file_backing.h"
#include "tests/formats/support.h"
#include "tests/support/errors.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

class Checkpoint : public FormatsTest {
 protected:
  Checkpoint() {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i);
    fill(master_.view(), 0.5f);
  }

  static void fill(const Tensor& view, float value) {
    std::fill_n(view.data<float>(), view.size(), value);
  }

  StateSource states() {
    return [this](const StateVisitor& visit) {
      visit({"w", StateRole::parameter, Tensor(values_.data(), DType::f32, {3, 7}), true});
      visit({"w.gradient", StateRole::gradient, Tensor(values_.data(), DType::f32, {3, 7}), false});
      visit(
          {"far", StateRole::master, master_.view(), false, memory_.file_of(master_.view().raw())});
    };
  }
  // What states() has, on the plan device.
  static StateSource planned_states(const Memory& memory) {
    return [&memory](const StateVisitor& visit) {
      visit({"w", StateRole::parameter, Tensor(nullptr, DType::f32, {3, 7}), true});
      visit({"w.gradient", StateRole::gradient, Tensor(nullptr, DType::f32, {3, 7}), false});
      visit({"far", StateRole::master, Tensor(nullptr, DType::f32, {5, 3}), false,
             memory.file_of(nullptr)});
    };
  }

  static int64_t bytes_below(const fs::path& directory) {
    int64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
    }
    return bytes;
  }

  const std::unique_ptr<Ops> ops_ = make_test_ops();
  std::vector<float> values_ = std::vector<float>(21);
  Memory memory_{"host", std::make_unique<FileBacking>(directory_ / "files"), 0};
  OwnedTensor master_{memory_, Purpose::masters, DType::f32, {5, 3}};  // 60 bytes in a file of 64
};

// Whatever the step, the checksums, the data and what the run has watched.
TEST_F(Checkpoint, BytesAreKnownBefore) {
  CheckpointInfo info{1, "1.2.3", "x86-64-v3", "f32", {}, 40, {}, {}, 20};
  const Memory planned("host", make_plan_backing("files"), 0);
  const auto [bytes, largest] = checkpoint_sizes(info, "a: 1\n", planned_states(planned));
  for (const int64_t step : std::vector<int64_t>{1, 23, 4567, 4294967295}) {
    info.step = step;
    info.data = std::string(static_cast<size_t>(step % 41), 'd');
    info.watch = step == 1 ? "" : fmt::format("{{\"best\":{}}}", step);
    values_[0] = static_cast<float>(step);
    fill(master_.view(), static_cast<float>(step));
    const fs::path path = write_checkpoint(directory_, info, "a: 1\n", states(), *ops_);
    EXPECT_EQ(bytes_below(path), bytes) << step;
    EXPECT_EQ(std::max(fs::file_size(path / "state.safetensors"),
                       fs::file_size(path / "checkpoint.json")),
              static_cast<uintmax_t>(largest));
    EXPECT_EQ(read_checkpoint_info(path).step, step);
    EXPECT_EQ(read_checkpoint_info(path).data, info.data);
    EXPECT_EQ(read_checkpoint_info(path).watch, info.watch);
  }
  EXPECT_EQ(checkpoint_sizes(info, "a: 12\n", planned_states(planned)).all, bytes + 1);
}

TEST_F(Checkpoint, WhatWasWatchedIsAnObject) {
  CheckpointInfo info{3, "1.2.3", "x86-64-v3", "f32", "data", 40};
  info.watch = "7";
  const fs::path path = write_checkpoint(directory_, info, "", states(), *ops_);
  expect_message(ErrorKind::model, "checkpoint.json: watch is not an object",
                 [&] { read_checkpoint_info(path); });
}

// Those that were written before checkpoint.json had a size of its own.
TEST_F(Checkpoint, ReadsWhatIsNotFilledUp) {
  const CheckpointInfo info{3, "1.2.3", "x86-64-v3", "f32", "data", 40};
  const fs::path path = write_checkpoint(directory_, info, "", states(), *ops_);
  const std::string text = slurp(path / "checkpoint.json");
  const std::string before = text.substr(0, text.rfind('}') + 1) + "\n";
  EXPECT_LT(before.size(), text.size());
  put("checkpoint-3/checkpoint.json", before);
  const std::vector<float> saved = values_;
  std::fill(values_.begin(), values_.end(), 0.0f);
  master_ = OwnedTensor(memory_, Purpose::masters, DType::f32, {5, 3});  // the file is shared
  restore_checkpoint(
      path, states(), [] {}, *ops_);
  EXPECT_EQ(values_, saved);
  EXPECT_EQ(master_.view().data<float>()[14], 0.5f);
}

TEST_F(Checkpoint, IsNamedWhereALearnerRefusesItsState) {
  const CheckpointInfo info{3, "1.2.3", "x86-64-v3", "f32", "data", 40};
  const fs::path path = write_checkpoint(directory_, info, "", states(), *ops_);
  const auto restore = [&](ErrorKind kind) {
    restore_checkpoint(
        path, states(), [kind] { fail(kind, "other groups"); }, *ops_);
  };
  expect_message(ErrorKind::model, path.string() + ": other groups",
                 [&] { restore(ErrorKind::model); });
  EXPECT_EQ(error_of(ErrorKind::does_not_fit, [&] { restore(ErrorKind::does_not_fit); }),
            "other groups | ");
}

TEST_F(Checkpoint, TheNewestAreKeptAndTheBestBesideThem) {
  const auto left = [&](int64_t keep, int64_t best) {
    const fs::path run = directory_ / fmt::format("run-{}-{}", keep, best);
    for (int64_t step = 1; step <= 4; ++step) {
      put(fmt::format("run-{}-{}/checkpoint-{}/checkpoint.json", keep, best, step), "{}");
    }
    prune_checkpoints(run, keep, checkpoint_path(run, best));
    std::string names;
    for (const fs::path& path : list_checkpoints(run)) names += path.filename().string().back();
    return names;
  };
  EXPECT_EQ(left(2, 1), "134");
  EXPECT_EQ(left(2, 3), "34");
  EXPECT_EQ(left(1, 4), "4");
  EXPECT_EQ(left(0, 4), "1234");
}

TEST_F(Checkpoint, AnAbandonedBranchGoesButForTheOneThatIsSpared) {
  for (int64_t step = 1; step <= 5; ++step) {
    put(fmt::format("checkpoint-{}/checkpoint.json", step), "{}");
  }
  const fs::path spared = checkpoint_path(directory_, 4);
  remove_checkpoints_after(directory_, 2, spared);
  EXPECT_EQ(list_checkpoints(directory_),
            (std::vector<fs::path>{checkpoint_path(directory_, 1), checkpoint_path(directory_, 2),
                                   spared}));
}

// Whatever kept them from being removed before.
TEST_F(Checkpoint, UnfinishedOnesAreRemovedWithThoseThatAreNotKept) {
  const fs::path unfinished = put("checkpoint-3.part/state.safetensors", "").parent_path();
  prune_checkpoints(directory_, 0);
  EXPECT_FALSE(fs::exists(unfinished));
}

// Another trainer's, a file, or one of ours that is damaged.
TEST_F(Checkpoint, OnlyOwnOnesCountAndAreRemoved) {
  const CheckpointInfo info{2, "1.2.3", "x86-64-v3", "f32", "data", 40};
  const fs::path own = write_checkpoint(directory_, info, "", states(), *ops_);
  const fs::path damaged = put("checkpoint-4/state.safetensors", "").parent_path();
  const fs::path others[] = {put("checkpoint-1/model.safetensors", "theirs"),
                             put("checkpoint-3", "a file"),
                             put("checkpoint-500/trainer_state.json", "{}")};
  EXPECT_EQ(list_checkpoints(directory_), (std::vector<fs::path>{own, damaged}));
  prune_checkpoints(directory_, 1);
  EXPECT_EQ(list_checkpoints(directory_), std::vector<fs::path>{damaged});
  remove_checkpoints_after(directory_, -1);
  EXPECT_TRUE(list_checkpoints(directory_).empty());
  for (const fs::path& other : others) EXPECT_TRUE(fs::exists(other)) << other;
  expect_message(ErrorKind::generic, "checkpoint-3 exists and is not a checkpoint of a run", [&] {
    write_checkpoint(directory_, {3, "1.2.3", "x86-64-v3", "f32", "data", 40}, "", states(), *ops_);
  });
  EXPECT_EQ(slurp(others[1]), "a file");
  EXPECT_TRUE(list_checkpoints(others[1]).empty());
}

TEST_F(Checkpoint, TakenForAResultSaysWhereThatIs) {
  const fs::path checkpoint = put("run/checkpoint-2/checkpoint.json", "{}").parent_path();
  const std::string to_write = "; to write that of a checkpoint, train with the same recipe";
  const auto begins = [](const std::string& hint, const std::string& with) {
    EXPECT_TRUE(hint.starts_with(with)) << hint;
  };
  const std::string later = "the result is written when the run ends" + to_write;
  begins(hint_without_result(checkpoint), later);
  begins(hint_without_result(directory_ / "run"), later);
  const std::string result =
      "the result of its run is in " + (directory_ / "run").string() + "/" + to_write;
  for (const char* name : {"adapter_config.json", "config.json"}) {
    const fs::path file = put(std::string("run/") + name, "{}");
    begins(hint_without_result(checkpoint), result);
    begins(hint_without_result(checkpoint / ""), result);
    fs::remove(file);
  }
}

// A link to itself: nobody can say what is there, root included.
TEST_F(Checkpoint, WhatCannotBeLookedAtIsNotPassedOver) {
  put("run/checkpoint-2/checkpoint.json", "{}");
  const fs::path run = directory_ / "run", lost = run / "checkpoint-4";
  fs::create_symlink(lost.filename(), lost);
  const std::string message = "cannot look at " + (lost / "checkpoint.json").string() + ": ";
  expect_message(ErrorKind::generic, message, [&] { list_checkpoints(run); });
  expect_message(ErrorKind::generic, message, [&] {
    write_checkpoint(run, {4, "1.2.3", "x86-64-v3", "f32", "data", 40}, "", states(), *ops_);
  });
  expect_message(ErrorKind::generic, "cannot list " + lost.string() + ": ",
                 [&] { list_checkpoints(lost); });
}

}  // namespace
}  // namespace jackscrew

// Frozen weights that stay in the map of their file (weights=mmap).
#include <unistd.h>

#include <cstring>

#include "base/map_guard.h"
#include "quant/plain.h"
#include "session/fit.h"
#include "session/rank_plan.h"
#include "session/stage_loader.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

// A copy of a golden model, whose file a test may change.
class MappedWeights : public ::testing::Test {
 protected:
  MappedWeights()
      : directory_(fs::temp_directory_path() / fmt::format("jackscrew_mapped_{}", ::getpid())) {
    fs::create_directories(directory_);
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(golden_path("gqa_tied") / name, directory_ / name,
                    fs::copy_options::overwrite_existing);
    }
    files_ = open_model(directory_.string());
  }
  ~MappedWeights() override { fs::remove_all(directory_); }

  fs::path weights() const { return directory_ / "model.safetensors"; }
  static std::vector<float> logits_of(Session& session) {
    const std::vector<int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
    const Tensor logits = session.logits(ids, 8, false);
    return {logits.data<float>(), logits.data<float>() + logits.size()};
  }
  // Of two steps, and the states that they lead to.
  static std::vector<float> trained(Session& session) {
    std::vector<float> out;
    const StepBatch batch = Golden("gqa_tied").batch();
    for (int64_t step = 0; step < 2; ++step) {
      session.accumulate(batch, 1e-2, step);
      out.push_back(static_cast<float>(session.update({}).loss));
    }
    for (const auto& [name, view] : states(session.stage(), StateRole::parameter)) {
      out.insert(out.end(), view.data<float>(), view.data<float>() + view.size());
    }
    return out;
  }

  const BusErrors bus_errors_;
  const fs::path directory_;
  const SessionUse look_{.tokens = 8, .max_positions = 8, .logits_rows = 8};
  const SessionUse train_ = training_use(Golden("gqa_tied").batch().tokens);
  ModelFiles files_;
};

TEST_F(MappedWeights, GiveTheSameBits) {
  const auto session = [&](const char* weights, const SessionUse& use) {
    return make_session(make_recipe({"method=lora", weights}), files_, use);
  };
  EXPECT_EQ(logits_of(*session("weights=mmap", look_)),
            logits_of(*session("weights=memory", look_)));
  EXPECT_EQ(trained(*session("weights=mmap", train_)), trained(*session("weights=memory", train_)));
}

TEST_F(MappedWeights, AreCountedApart) {
  const auto plan = [&](const char* weights, const SessionUse& use) {
    return Session::rehearse(make_recipe({"method=lora", weights}), files_, use);
  };
  const auto of_weights = [](const Ledger& ledger) {
    return ledger.current[static_cast<size_t>(Purpose::weights)];
  };
  for (const SessionUse& use : {look_, train_}) {
    const Recipe recipe = make_recipe({"method=lora", "weights=mmap"});
    const SessionPlan mapped = plan("weights=mmap", use);
    const SessionPlan kept = plan("weights=memory", use);
    EXPECT_EQ(kept.mapped_bytes, 0);
    EXPECT_EQ(kept.weight_bytes, mapped.weight_bytes);
    EXPECT_GT(mapped.mapped_bytes, mapped.weight_bytes / 2);
    const Session session(recipe, files_, use, mapped);
    EXPECT_EQ(mapped_bytes(const_cast<Session&>(session).stage()), mapped.mapped_bytes);
    EXPECT_EQ(session.memory().ledger().peak, mapped.ledger.peak);
    const Session in_memory(make_recipe({"method=lora", "weights=memory"}), files_, use, kept);
    EXPECT_LE(of_weights(session.memory().ledger()),
              of_weights(in_memory.memory().ledger()) - mapped.mapped_bytes);
  }
  // Of itself only what does not train leaves weights in their file.
  EXPECT_GT(plan("weights=auto", look_).mapped_bytes, 0);
  EXPECT_EQ(plan("weights=auto", train_).mapped_bytes, 0);
}

TEST_F(MappedWeights, OutliveTheNameOfTheirFileAndItsOwner) {
  const auto session = make_session(make_recipe({"weights=mmap"}), files_, look_);
  const std::vector<float> before = logits_of(*session);
  fs::remove(weights());
  files_.source.reset();
  EXPECT_EQ(logits_of(*session), before);
}

TEST_F(MappedWeights, OfAFileCutShortAreAnError) {
  const auto looks = make_session(make_recipe({"weights=mmap"}), files_, look_);
  const auto trains = make_session(make_recipe({"method=lora", "weights=mmap"}), files_, train_);
  logits_of(*looks);
  fs::resize_file(weights(), 0);
  const std::string message = weights().string() + ": the file was cut short";
  expect_message(ErrorKind::model, message, [&] { logits_of(*looks); });
  expect_message(ErrorKind::model, message, [&] { trained(*trains); });
}

// The last page then reads as zeros, without a signal.
TEST_F(MappedWeights, OfAFileCutShortByAFewBytesAreAnError) {
  const auto looks = make_session(make_recipe({"weights=mmap"}), files_, look_);
  uintmax_t size = fs::file_size(weights()) - 50;
  if (size % 4096 == 0) --size;
  fs::resize_file(weights(), size);
  const std::string message = weights().string() + ": the file was cut short";
  expect_message(ErrorKind::model, message, [&] { logits_of(*looks); });
  expect_message(ErrorKind::model, message,
                 [&] { make_session(make_recipe({"weights=memory"}), files_, look_); });
}

TEST_F(MappedWeights, AreRefusedWhereThereCanBeNone) {
  const auto refusal = [&](std::vector<std::string> settings, const std::string& text) {
    settings.push_back("weights=mmap");
    const Recipe recipe = make_recipe(settings);
    expect_message(ErrorKind::usage, text, [&] { Session::rehearse(recipe, files_, train_); });
  };
  refusal({"method=full"}, "weights=mmap, but learner=full changes the weights");
  refusal({"method=rotary"}, "weights=mmap, but learner=rotary changes the weights");
  refusal({"init=random"}, "weights=mmap, but the weights come from no file");
  const Recipe coarse = make_recipe({"storage=bf16", "weights=mmap"});
  expect_message(ErrorKind::usage, "weights=mmap, but storage=bf16 is not what the file has",
                 [&] { Session::rehearse(coarse, files_, train_); });
}

TEST_F(MappedWeights, AreAWayOutWhereOtherStorageDoesNotFit) {
  const auto recipe_with = [](const std::string& storage, int64_t budget) {
    return make_recipe({"storage=" + storage, fmt::format("device_memory={}B", budget)});
  };
  const auto plan = [&](const std::string& storage) {
    return Session::rehearse(make_recipe({"storage=" + storage}), files_, look_);
  };
  const int64_t kept = plan("keep").ledger.peak;
  const SessionPlan narrow = plan("bf16");
  ASSERT_LT(kept, narrow.ledger.peak);
  const auto hint = [&](int64_t budget) {
    return hint_of(error_of(ErrorKind::does_not_fit, [&] {
      require_fit(recipe_with("bf16", budget), files_, look_, narrow);
    }));
  };
  EXPECT_EQ(hint(kept), "raise it, set storage=keep, or take a smaller sequence_len");
  EXPECT_EQ(hint(kept - 1), "raise it or take a smaller sequence_len");
}

TEST_F(MappedWeights, MayBeThoseThatAStorageLeaves) {
  const auto mapped = [&](const char* storage) {
    return Session::rehearse(make_recipe({storage, "weights=mmap"}), files_, look_).mapped_bytes;
  };
  EXPECT_EQ(mapped("storage=f32"), mapped("storage=keep"));  // as the file has them
  EXPECT_GT(mapped("storage=nf4"), 0);                       // embedding and head
  EXPECT_LT(mapped("storage=nf4"), mapped("storage=keep"));
}

// The stage between embedding and head has nothing but what the storage converts.
TEST_F(MappedWeights, NeedNotBeInEveryStage) {
  const auto plan_with = [&](const char* storage) {
    return plan_ranks(make_recipe({"method=lora", "weights=mmap", "sequence_len=16",
                                   "pipeline_stages=3", storage}),
                      files_, 3);
  };
  const RanksPlan plan = plan_with("storage=nf4");
  EXPECT_GT(plan.ranks.at(0).mapped_bytes, 0);
  EXPECT_EQ(plan.ranks.at(1).mapped_bytes, 0);
  EXPECT_GT(plan.ranks.at(2).mapped_bytes, 0);
  expect_message(ErrorKind::usage, "weights=mmap, but storage=bf16 is not what the file has",
                 [&] { plan_with("storage=bf16"); });
}

// Tensors behind a header of odd length, as those of a GGUF file whose alignment is 1.
TEST_F(MappedWeights, NeedAlignedPlaces) {
  const std::string text = read_text(weights());
  uint64_t header = 0;
  std::memcpy(&header, text.data(), sizeof header);
  const uint64_t longer = header + 1;
  std::string moved(reinterpret_cast<const char*>(&longer), sizeof longer);
  moved += text.substr(sizeof header, header) + " " + text.substr(sizeof header + header);
  write_text_atomic(weights(), moved);
  const ModelFiles files = open_model(directory_.string());
  const auto look = [&](const char* place) {
    return Session::rehearse(make_recipe({"method=lora", place}), files, look_).mapped_bytes;
  };
  expect_error(ErrorKind::usage, "another order, or to aligned places, while they load",
               [&] { look("weights=mmap"); });
  EXPECT_EQ(look("weights=auto"), 0);
}

TEST(LiesAsStorage, GoesByOrderAndAlignment) {
  std::vector<uint8_t> bytes(64 * 20 + 1);
  const auto tensor = [&](const char* format, size_t at, size_t size) {
    return StoredTensor{
        "w", unowned(find_format(format)), {2, 32}, std::span(bytes).subspan(at, size)};
  };
  // A vector's memory is aligned to more than a float.
  EXPECT_TRUE(lies_as_storage(tensor("f32", 0, 256), 32));
  EXPECT_TRUE(lies_as_storage(tensor("f32", 4, 256), 32));
  EXPECT_FALSE(lies_as_storage(tensor("f32", 2, 256), 32));
  EXPECT_TRUE(lies_as_storage(tensor("bf16", 2, 128), 32));
  EXPECT_FALSE(lies_as_storage(tensor("bf16", 1, 128), 32));
  EXPECT_TRUE(lies_as_storage(tensor("q4_1", 1, 40), 32));
  EXPECT_FALSE(lies_as_storage(tensor("nf4", 0, 64), 32));
  StoredTensor interleaved = tensor("q4_1", 0, 40);
  interleaved.interleaved_heads = 1;
  EXPECT_FALSE(lies_as_storage(interleaved, 32));
  StoredTensor other = tensor("q4_1", 0, 40);
  other.transcode = [](int64_t, int, const StorageSink&) {};
  EXPECT_FALSE(lies_as_storage(other, 32));
}

}  // namespace
}  // namespace jackscrew

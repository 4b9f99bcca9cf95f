// Plans, budgets, and steps that allocate nothing.
#include <gtest/gtest.h>

#include "base/process_memory.h"
#include "session/fit.h"
#include "tests/cli/run_program.h"
#include "tests/support/batches.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

struct Shape {
  int64_t tokens;
  std::vector<std::vector<int32_t>> micro_batches;  // lengths
};

class MemoryTest : public ::testing::Test {
 protected:
  StepBatch step(const Shape& shape) const {
    std::vector<MicroBatch> parts;
    for (const auto& lengths : shape.micro_batches) {
      parts.push_back(random_micro_batch(files_.config.vocab_size, lengths, 1));
    }
    return step_of(std::move(parts));
  }
  const ModelFiles files_ = open_model(golden_path("gqa_tied").string());
};

void expect_same_ledger(const Ledger& a, const Ledger& b) {
  EXPECT_EQ(a.total, b.total);
  EXPECT_EQ(a.peak, b.peak);
  EXPECT_EQ(a.current, b.current);
  EXPECT_EQ(a.at_peak, b.at_peak);
}

TEST_F(MemoryTest, IsWhatTheRunTakesToTheByte) {
  const Shape shapes[] = {{64, {{64}}}, {64, {{20, 1, 43}, {5}}}, {333, {{333}, {100, 100, 133}}}};
  for (const Shape& shape : shapes) {
    // Dropout takes memory of its own.
    for (const auto& [method, more] :
         {std::pair{"method=full", "storage=bf16"}, std::pair{"method=lora", "lora_dropout=0.1"}}) {
      for (const char* recompute : {"true", "false"}) {
        const Recipe recipe =
            make_recipe({method, more, fmt::format("gradient_checkpointing={}", recompute)});
        const SessionUse use = training_use(shape.tokens);
        const SessionPlan plan = Session::rehearse(recipe, files_, use);
        Session session(recipe, files_, use, plan);
        const StepBatch batch = step(shape);
        session.accumulate(batch, 1e-3, 0);
        session.update({});
        session.loss_sum(batch);
        session.logits(batch.micro_batches[0].ids, 3, false);
        SCOPED_TRACE(fmt::format("{} recompute {} tokens {}", method, recompute, shape.tokens));
        expect_same_ledger(session.memory().ledger(), plan.ledger);
        EXPECT_EQ(session.memory().ledger().peak_at, plan.ledger.peak_at);
      }
    }
  }
}

// The run books what was planned whether it needs it or not; so that the plan is no larger than the
// largest batch needs, nothing of it may be taken away.
TEST_F(MemoryTest, ReservesNoMoreThanTheLargestBatchNeeds) {
  MicroBatch micro = random_micro_batch(files_.config.vocab_size, {200}, 1);
  std::fill(micro.targets.begin(), micro.targets.end(), 1);
  micro.target_count = micro.tokens();
  const SessionUse use = training_use(micro.tokens());
  for (const char* method : {"method=full", "method=lora"}) {
    for (const char* recompute : {"true", "false"}) {
      const Recipe recipe =
          make_recipe({method, fmt::format("gradient_checkpointing={}", recompute)});
      const auto run = [&](const SessionPlan& plan) {
        Session session(recipe, files_, use, plan);
        session.accumulate(step_of({micro}), 1e-3, 0);
        session.update({});
        session.loss_sum(step_of({micro}));
        session.logits(micro.ids, micro.tokens(), false);
      };
      const SessionPlan plan = Session::rehearse(recipe, files_, use);
      EXPECT_NO_THROW(run(plan));
      for (int64_t ArenaSizes::*arena : {&ArenaSizes::scratch, &ArenaSizes::stash}) {
        SessionPlan less = plan;
        less.arenas.*arena -= 64;
        EXPECT_THROW(run(less), Error) << method << " recompute " << recompute;
      }
    }
  }
}

TEST_F(MemoryTest, BudgetBelowThePlanIsRefused) {
  const SessionUse use = training_use(64);
  const auto with_budget = [&](int64_t bytes) {
    return make_recipe(
        {"method=full", "gradient_checkpointing=false", fmt::format("device_memory={}B", bytes)});
  };
  const SessionPlan plan = Session::rehearse(make_recipe({"method=full"}), files_, use);
  Session fits(with_budget(plan.ledger.peak), files_, use, plan);
  const StepBatch batch = step({64, {{30, 34}}});
  fits.accumulate(batch, 1e-3, 0);
  EXPECT_TRUE(fits.update({}).finite);
  expect_message(ErrorKind::does_not_fit, "device_memory",
                 [&] { Session too_large(with_budget(plan.ledger.peak - 1), files_, use, plan); });
}

// Masters wait in the machine's memory, of which a budget for the device alone says nothing.
TEST_F(MemoryTest, ADeviceBudgetSaysNothingOfMasters) {
  const auto recipe = [](const std::string& budgets) {
    return make_recipe(settings_of("method=rotary active_params=50% sequence_len=32 " + budgets));
  };
  const SessionUse use = training_use(recipe(""));
  SessionPlan plan = Session::rehearse(recipe(""), files_, use);
  EXPECT_NO_THROW(require_fit(recipe("device_memory=1GiB"), files_, use, plan));
  plan.host.peak = int64_t{1} << 50;
  const int64_t available = available_memory_bytes();
  if (available == 0) GTEST_SKIP() << "the system does not say what is free";
  const std::string refusal = error_of(ErrorKind::does_not_fit, [&] {
    require_fit(recipe("device_memory=1GiB"), files_, use, plan);
  });
  EXPECT_NE(refusal.find("GiB for masters, but only "), std::string::npos) << refusal;
  EXPECT_TRUE(machine_memory(recipe("device_memory=1GiB"), use, plan).available);
  if (memory_limit()) return;  // which no budget lifts
  EXPECT_NO_THROW(require_fit(recipe("device_memory=1GiB host_memory=2048TiB"), files_, use, plan));
  EXPECT_FALSE(
      machine_memory(recipe("device_memory=1GiB host_memory=2048TiB"), use, plan).available);
  plan.host.peak = 0;
  EXPECT_FALSE(machine_memory(recipe("device_memory=1GiB"), use, plan).available);
}

// No budget speaks of the data, and a machine has no more for them than for the session.
TEST_F(MemoryTest, DataAreOfTheMachinesMemory) {
  const Recipe free = make_recipe(settings_of("sequence_len=32"));
  SessionUse use = training_use(free);
  const SessionPlan plan = Session::rehearse(free, files_, use);
  const int64_t without = machine_memory(free, use, plan).needed;
  use.data_bytes = 12345;
  EXPECT_EQ(machine_memory(free, use, plan).needed, without + 12345);
  EXPECT_NO_THROW(require_fit(free, files_, use, plan));
  use.data_bytes = int64_t{1} << 50;
  if (available_memory_bytes() == 0) GTEST_SKIP() << "the system does not say what is free";
  const std::string refusal =
      error_of(ErrorKind::does_not_fit, [&] { require_fit(free, files_, use, plan); });
  EXPECT_NE(refusal.find(" and 1048576.00 GiB for data"), std::string::npos) << refusal;
  if (memory_limit()) return;  // which no budget lifts
  const Recipe budgeted = make_recipe(settings_of("sequence_len=32 device_memory=1GiB"));
  EXPECT_NO_THROW(require_fit(budgeted, files_, use, plan));
}

// Nor does one of files that lie in memory; where they alone are too much, that is the hint.
TEST_F(MemoryTest, FilesInMemoryAreOfTheMachinesMemory) {
  const Recipe free = make_recipe(settings_of("sequence_len=32"));
  SessionUse use = training_use(free);
  const SessionPlan plan = Session::rehearse(free, files_, use);
  const int64_t without = machine_memory(free, use, plan).needed;
  use.file_bytes = 12345;
  EXPECT_EQ(machine_memory(free, use, plan).needed, without + 12345);
  EXPECT_NO_THROW(require_fit(free, files_, use, plan));
  use.file_bytes = int64_t{1} << 50;
  if (available_memory_bytes() == 0) GTEST_SKIP() << "the system does not say what is free";
  try {
    require_fit(free, files_, use, plan);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_NE(std::string(error.what())
                  .find(" and 1048576.00 GiB for files of output_dir, which is in memory (tmpfs)"),
              std::string::npos)
        << error.what();
    EXPECT_EQ(error.hint(), "give an output_dir on a disk");
  }
}

// Nor does one of what a decomposition takes for a moment, in no ledger.
TEST_F(MemoryTest, DecompositionsAreOfTheMachinesMemory) {
  const std::string galore = "sequence_len=32 method=galore galore_side=big ";
  const auto plan_of = [&](const std::string& settings) {
    const Recipe recipe = make_recipe(settings_of(settings));
    return Session::rehearse(recipe, files_, training_use(recipe));
  };
  // Of [44, 32] the gradient, and three matrices [44, 44].
  const int64_t bytes = 8 * 44 * 32 + 3 * 8 * 44 * 44;
  SessionPlan plan = plan_of(galore + "subspace=svd");
  EXPECT_EQ(plan.decomposition_bytes, bytes);
  EXPECT_EQ(
      plan_of(galore + "subspace=svd update=fused max_grad_norm_of=weight").decomposition_bytes,
      bytes);
  EXPECT_EQ(plan_of("sequence_len=32 method=full").decomposition_bytes, 0);
  const Recipe free = make_recipe(settings_of(galore + "subspace=svd"));
  const SessionUse use = training_use(free);
  const int64_t with = machine_memory(free, use, plan).needed;
  EXPECT_NO_THROW(require_fit(free, files_, use, plan));
  plan.decomposition_bytes = 0;
  EXPECT_EQ(machine_memory(free, use, plan).needed, with - bytes);
  plan.decomposition_bytes = int64_t{1} << 50;
  if (available_memory_bytes() == 0) GTEST_SKIP() << "the system does not say what is free";
  const std::string refusal =
      error_of(ErrorKind::does_not_fit, [&] { require_fit(free, files_, use, plan); });
  EXPECT_NE(refusal.find(" and 1048576.00 GiB for the largest decomposition"), std::string::npos)
      << refusal;
}

// What runs were seen to take, in MiB: product=f32, product=bf16, then both with micro-batches of
// many lengths.
TEST_F(MemoryTest, LeavesRoomForWhatIsNotBooked) {
  struct Measured {
    int threads;
    double booked, resident;
  };
  const auto bytes = [](double mib) { return static_cast<int64_t>(mib * (1 << 20)); };
  for (const Measured& run :
       {Measured{1, 614.7, 628}, Measured{2, 614.7, 634}, Measured{4, 614.7, 649},
        Measured{8, 614.7, 665}, Measured{16, 614.7, 716}, Measured{32, 614.7, 849},
        Measured{1, 394.6, 399}, Measured{2, 394.6, 409}, Measured{4, 394.6, 424},
        Measured{8, 394.6, 448}, Measured{16, 394.6, 492}, Measured{32, 394.6, 552},
        Measured{2, 142.3, 197.3}, Measured{2, 125.7, 174}}) {
    SessionPlan plan;
    plan.ledger.peak = bytes(run.booked);
    const Recipe recipe = make_recipe({fmt::format("threads={}", run.threads)});
    EXPECT_GE(machine_memory(recipe, {}, plan).needed, bytes(run.resident))
        << run.threads << " threads, " << run.booked << " MiB";
  }
}

// As many tensors as usual models have are within what every run is taken to need.
TEST_F(MemoryTest, LeavesRoomForManyTensors) {
  const Recipe recipe = make_recipe({"threads=1"});
  const auto needed = [&](int64_t tensors) {
    SessionPlan plan;
    plan.gradients = tensors;
    return machine_memory(recipe, {}, plan).needed;
  };
  EXPECT_EQ(needed(1000), needed(0));
  // Seen beside the ledger: LoRA over 1000 blocks, DoRA with adamw_8bit over as many.
  EXPECT_GE(needed(14000) - needed(0), int64_t{35} << 20);
  EXPECT_GE(needed(21000) - needed(0), int64_t{52} << 20);
}

TEST_F(MemoryTest, RecomputesWhenMemoryNeedsIt) {
  const SessionUse use = training_use(256);
  const SessionPlan kept = Session::rehearse(make_recipe({"method=full"}), files_, use);
  EXPECT_FALSE(kept.recompute);
  const Recipe tight =
      make_recipe({"method=full", fmt::format("device_memory={}B", kept.ledger.peak - 1)});
  const SessionPlan plan = Session::rehearse(tight, files_, use);
  EXPECT_TRUE(plan.recompute);
  EXPECT_LT(plan.ledger.peak, kept.ledger.peak);
  Session session(tight, files_, use, plan);
  session.accumulate(step({256, {{256}}}), 1e-3, 0);
  EXPECT_TRUE(session.update({}).finite);
}

// The head, which is most of this model, multiplies a single row in f32 panels.
TEST_F(MemoryTest, ASingleTargetTakesNoMoreThanWasPlanned) {
  const TemporaryDirectory directory("jackscrew_single_target");
  const ModelFiles files = open_model(directory.file("config.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8000,
      "hidden_size": 512, "intermediate_size": 32, "num_hidden_layers": 1,
      "num_attention_heads": 8, "num_key_value_heads": 1, "max_position_embeddings": 128,
      "tie_word_embeddings": true})"));
  const Recipe recipe = make_recipe(
      {"method=lora", "init=random", "storage=bf16", "product=int8", "device=cpu", "threads=1"});
  const auto session = make_session(recipe, files, training_use(4));
  MicroBatch micro = random_micro_batch(files.config.vocab_size, {4}, 1);
  micro.targets = {-1, 7, -1, -1};
  micro.target_count = 1;
  session->accumulate(step_of({micro}), 1e-3, 0);
  EXPECT_TRUE(session->update({}).finite);
}

TEST_F(MemoryTest, StepsAllocateNothing) {
  for (const char* method : {"method=full", "method=lora"}) {
    const auto session = make_session(make_recipe({method}), files_, training_use(64));
    const Ledger before = session->memory().ledger();
    for (const Shape& shape : {Shape{64, {{64}}}, Shape{64, {{3}, {10, 20, 30}}}}) {
      session->accumulate(step(shape), 1e-3, 0);
      session->update({});
      expect_same_ledger(session->memory().ledger(), before);
    }
    // Between accumulate() and update() nobody can.
    session->accumulate(step({64, {{64}}}), 1e-3, 2);
    EXPECT_THROW(session->memory().allocate(Purpose::workspace, 1), Error);
    session->update({});
    EXPECT_NO_THROW(session->memory().allocate(Purpose::workspace, 1));
  }
}

TEST(HostMemory, NamesWhatIsHeldAlready) {
  constexpr int64_t kMore = int64_t{1} << 55;  // than any machine has
  expect_error(ErrorKind::does_not_fit, "of memory beside 3.0 MiB that it holds",
               [] { require_host_memory(kMore, make_recipe({}), "raise the limit", 3 << 20); });
}

}  // namespace
}  // namespace jackscrew

// quantize into GGUF files and NF4 as users call it.
#include <limits>

#include "tests/conversion/quantise_rig.h"
#include "tests/conversion/set_largest.h"

namespace jackscrew {
namespace {

using nlohmann::json;

class SlowQuantiseStorage : public QuantiseRig {
 protected:
  // Rows that blocks of 256 divide, and such that they do not.
  SlowQuantiseStorage() : QuantiseRig("quantise_storage", "") {
    train_base("model=" + tiny_.file("wide.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
      "tie_word_embeddings": true, "bos_token_id": 256, "eos_token_id": 257})"));
  }
  std::string quantise_gguf(const std::string& output, const std::string& storage,
                            const std::string& more = "") const {
    return quantise(output + ".gguf",
                    fmt::format("calibration_sequences=16 storage={} {}", storage, more));
  }
};

TEST_F(SlowQuantiseStorage, WritesWhatItSays) {
  for (const std::string storage : {"q4_k_m", "iq4_nl", "q3_k_s", "q8_0"}) {
    SCOPED_TRACE(storage);
    const json said = answer(quantise_gguf(storage, storage, "eval_data=" + tiny_.eval_data()));
    EXPECT_EQ(said["matrices"].size(), 14u);
    for (const json& matrix : said["matrices"]) EXPECT_LT(matrix["error"], 0.05) << matrix;
    EXPECT_NEAR(said["reference_loss"], loss("base"), 1e-6);
    EXPECT_NEAR(said["loss"], loss(storage + ".gguf"), 1e-6);
    EXPECT_EQ(said["bytes"], std::ssize(tiny_.text(storage + ".gguf")));
    // The file is export's but for the codes.
    const json exported = answer(fmt::format("export model={} output={} storage={}", path("base"),
                                             path("x.gguf"), storage + " overwrite=true"));
    EXPECT_EQ(said["bytes"], exported["bytes"]);
    EXPECT_EQ(answer("inspect model=" + path(storage + ".gguf"))["storage"],
              answer("inspect model=" + path("x.gguf"))["storage"]);
  }
}

TEST_F(SlowQuantiseStorage, LosesLessThanExport) {
  for (const std::string storage : {"q3_k_s", "nf4"}) {
    SCOPED_TRACE(storage);
    const std::string format = storage == "nf4" ? "format=hf" : "format=gguf";
    const std::string how =
        fmt::format("{} storage={} calibration_sequences=16 eval_data={} overwrite=true", format,
                    storage, tiny_.eval_data());
    const json rounded = answer(quantise("r", how));
    const json nearest = answer(quantise("r", how + " rounding=nearest"));
    double with = 0.0, without = 0.0;
    for (size_t i = 0; i < rounded["matrices"].size(); ++i) {
      with += rounded["matrices"][i]["error"].get<double>();
      without += nearest["matrices"][i]["error"].get<double>();
    }
    EXPECT_LT(with, 0.7 * without);
    // Without a Hessian nothing is left of the difference.
    const std::string output = storage == "nf4" ? "output_dir" : "output";
    answer(fmt::format("export model={} {} storage={} {}={}", path("base"), format, storage, output,
                       path("exported_" + storage)));
    if (storage == "nf4") {
      EXPECT_EQ(contents(path("r")), contents(path("exported_" + storage)));
      EXPECT_NEAR(loss("r"), nearest["loss"], 1e-6);
    } else {
      EXPECT_EQ(tiny_.text("r"), tiny_.text("exported_" + storage));
      fs::remove(path("r"));
    }
  }
}

// Types are chosen for a rate.
TEST_F(SlowQuantiseStorage, MixesTypes) {
  std::map<std::string, double> losses;
  for (const std::string bits : {"4.5", "5", "7", "8"}) {
    SCOPED_TRACE(bits);
    const std::string how = "bits=" + bits + " eval_data=" + tiny_.eval_data();
    const json dry = answer(quantise_gguf("dry", "keep", how + " --dry-run"));
    const json said = answer(quantise_gguf("m" + bits, "keep", how));
    EXPECT_LE(said["bits"], std::stod(bits));
    EXPECT_GE(said["bits"], 0.97 * std::stod(bits) - (bits == "8" ? 0.3 : 0.0));
    EXPECT_LE(said["bytes"], dry["bytes"]);
    EXPECT_EQ(said["bytes"], std::ssize(tiny_.text("m" + bits + ".gguf")));
    EXPECT_NEAR(said["loss"], loss("m" + bits + ".gguf"), 1e-6);
    losses[bits] = said["kl"];
  }
  EXPECT_LT(losses["8"], losses["7"]);
  EXPECT_LT(losses["7"], losses["5"]);
  EXPECT_LT(losses["5"], losses["4.5"]);
  refused("format=gguf bits=2", 2, {"comes to bits=2", "the least is bits="});
  refused("format=gguf bits=5 rounding=nearest", 2, {"measures nothing"});
}

// The highest rate with which a run fits: that run then takes no more than it was said to have.
TEST_F(SlowQuantiseStorage, MixesTypesThatFitARun) {
  const std::string run_of = "method=lora lora_rank=4 micro_batch_size=1 sequence_len=64 threads=2";
  const auto peak = [&](const std::string& model, const std::string& more) {
    const json plan = answer(fmt::format("plan model={} {} {}", model, run_of, more));
    return plan["device"]["peak"].get<int64_t>();
  };
  answer(quantise_gguf("five", "keep", "bits=5"));
  const int64_t budget = peak(path("five.gguf"), "gradient_checkpointing=true");
  const std::string memory = fmt::format("device_memory={}B", budget);
  const json said = answer(quantise("fits.gguf", run_of + " " + memory));
  EXPECT_LE(peak(path("fits.gguf"), memory), budget);
  EXPECT_GE(said["bits"], 4.9);
  // So does one that trains a head, which is read from another format than it is kept in.
  const std::string of_head = run_of + " modules_to_save=embed_tokens gradient_checkpointing=true";
  const int64_t with_head = peak(path("five.gguf"), of_head.substr(run_of.size()));
  const json fits =
      answer(quantise("head.gguf", fmt::format("{} device_memory={}B", of_head, with_head)));
  EXPECT_GE(fits["bits"], 4.9);
  refused("format=gguf method=lora device_memory=100KiB", 3, {"in the fewest bits"});
  refused("format=gguf method=rotary device_memory=1GiB", 2, {"does not hold", "method=lora"});
  refused("format=gguf device_memory=1GiB bits=5", 2, {"both bits and device_memory"});
  // The storage that a method implies is neither one that was asked for nor the run's.
  const Outcome qlora = run(quantise("qlora.gguf", run_of + " method=qlora device_memory=4MiB") +
                            " --dry-run --quiet" + kErrorsOnly);
  EXPECT_EQ(qlora.exit_code, 0) << qlora.out;
  EXPECT_NE(qlora.out.find("method=qlora implies storage=nf4, but"), std::string::npos)
      << qlora.out;
  // Nor does it take any room where activations must be recomputed.
  const json tight = answer(quantise("tight.gguf", run_of + " method=qlora " + memory));
  EXPECT_EQ(tight["bits"], said["bits"]);
  const Outcome lora = run(quantise("lora.gguf", run_of + " device_memory=4MiB") +
                           " --dry-run --quiet" + kErrorsOnly);
  EXPECT_EQ(lora.out, "");
}

// Each stage of a pipeline has the highest rate that its own device has room for.
TEST_F(SlowQuantiseStorage, MixesTypesThatFitAPipeline) {
  const std::string run_of =
      "method=lora lora_rank=4 micro_batch_size=1 sequence_len=64 threads=2 ranks=2 "
      "pipeline_stages=2";
  const auto peaks = [&](const std::string& model) {
    const json plan =
        answer(fmt::format("plan model={} {} gradient_checkpointing=true", path(model), run_of));
    std::vector<int64_t> all;
    for (const json& rank : plan["ranks"]) all.push_back(rank["device"]["peak"]);
    return all;
  };
  answer(quantise_gguf("five", "keep", "bits=5"));
  answer(quantise_gguf("seven", "keep", "bits=7"));
  const std::vector<int64_t> five = peaks("five.gguf"), seven = peaks("seven.gguf");
  const std::vector<int64_t> budgets = {seven.at(0), five.at(1)};
  answer(quantise("fits.gguf",
                  fmt::format("{} rank_device_memory={}B,{}B", run_of, budgets[0], budgets[1])));
  const std::vector<int64_t> fits = peaks("fits.gguf");
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_LE(fits.at(rank), budgets[rank]);
    EXPECT_GT(fits.at(rank), budgets[rank] - (seven[rank] - five[rank]) / 4);
  }
  refused(run_of + " format=gguf rank_device_memory=1GiB,60KiB", 3,
          {"fewest bits", "on rank 1", "KiB (rank_device_memory)", "raise rank_device_memory"});
  refused(run_of + " format=gguf device_memory=60KiB", 3,
          {"KiB (device_memory)", "raise device_memory"});
  refused(run_of + " format=gguf bits=5 rank_device_memory=1GiB,1GiB", 2,
          {"both bits and rank_device_memory are set"});
  refused(run_of + " format=gguf rank_device_memory=1GiB", 2, {"rank_device_memory has 1 entry"});
}

TEST_F(SlowQuantiseStorage, MemoryAsPlanned) {
  const std::string text = "output_dir= calibration_sequences=40 output=" + path("planned.gguf ");
  expect_memory_as_planned(text + "storage=q4_k_m");
  expect_memory_as_planned(text + "storage=q8_0 rounding=nearest");
  expect_memory_as_planned(text + "bits=5");
  expect_memory_as_planned("calibration_sequences=16 format=hf storage=nf4");
}

TEST_F(SlowQuantiseStorage, SameBytesWithAnyThreads) {
  for (const int threads : {1, 2, 3}) {
    answer(
        quantise_gguf(fmt::format("t{}", threads), "q4_k_m", fmt::format("threads={}", threads)));
  }
  EXPECT_EQ(tiny_.text("t1.gguf"), tiny_.text("t2.gguf"));
  EXPECT_EQ(tiny_.text("t1.gguf"), tiny_.text("t3.gguf"));
}

// Rows that are no whole number of blocks: rounded to nearest in NF4, in f16 in GGUF files.
TEST_F(SlowQuantiseStorage, RowsOfUnevenWidths) {
  const auto train = [&](const char* name, int64_t hidden, int64_t intermediate) {
    const std::string config =
        tiny_.file(fmt::format("{}.json", name), fmt::format(R"({{
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
      "tie_word_embeddings": true, "bos_token_id": 256, "eos_token_id": 257}})",
                                                             hidden, intermediate));
    tiny_.must_train(name, "method=full max_steps=2 model=" + config);
    return "calibration_sequences=16 model=" + path(name) + " eval_data=" + tiny_.eval_data();
  };
  const std::string uneven = train("uneven", 64, 176);
  const json nf4 = answer(quantise("nf4", uneven + " format=hf storage=nf4"));
  EXPECT_EQ(nf4["matrices"].size(), 14u);
  EXPECT_NE(nf4["notes"].dump().find("2 matrices with rows of 176 elements: rounded to nearest"),
            std::string::npos);
  EXPECT_NE(nf4["notes"].dump().find("bitsandbytes 0.50.2 reads other values than these"),
            std::string::npos)
      << nf4["notes"];
  EXPECT_NEAR(nf4["loss"], loss("nf4"), 1e-6);
  for (const std::string how : {"storage=q4_k_m", "bits=8", "storage=q4_0 rounding=nearest"}) {
    SCOPED_TRACE(how);
    const json said = answer(quantise("g.gguf", uneven + " overwrite=true " + how));
    EXPECT_EQ(said["matrices"].size(), 12u);
    EXPECT_NEAR(said["loss"], loss("g.gguf"), 1e-6);
  }
  // What stays in f16 counts in the rate, and in what fits a run.
  const json mixed = answer(quantise("g.gguf", uneven + " overwrite=true bits=8"));
  EXPECT_LE(mixed["bits"], 8);
  double rounded = 0.0;
  for (const json& matrix : mixed["matrices"]) rounded += matrix["bits"].get<double>();
  EXPECT_LT(rounded / static_cast<double>(mixed["matrices"].size()), 7.0);
  refused(uneven + " format=gguf bits=5", 2, {"the least is bits="});
  const std::string run_of = "method=lora lora_rank=4 micro_batch_size=1 sequence_len=64 ";
  const json plan =
      answer(fmt::format("plan model={} {} gradient_checkpointing=true", path("g.gguf"), run_of));
  answer(quantise("fits.gguf", fmt::format("{} overwrite=true {} device_memory={}B", uneven, run_of,
                                           plan["device"]["peak"].get<int64_t>())));
  refused(train("tall", 64, 2000) + " format=gguf bits=8", 2,
          {"no mixture", "more than bits can be: storage=q8_0"});
  // Hints name what there is for such widths, which is not refused then.
  const std::string odd = train("odd", 104, 260);
  const std::string ways =
      "hint: quantize takes format=gptq bits=8 storage=keep output_dir=DIR, or format=hf "
      "storage=nf4 output_dir=DIR; export writes it";
  for (const std::string how : {"format=gguf storage=q4_k_m", "format=gguf bits=5",
                                "format=gguf method=lora device_memory=100KiB"}) {
    refused(odd + " " + how, 5, {"none of this model's matrices", ways});
  }
  refused(odd, 5, {"rows of 4 bits fill no whole words", ways});
  refused(odd + " format=exl2", 5, {"104 columns: EXL2 has multiples of 32", ways});
  refused(odd + " format=exl2 method=lora device_memory=100KiB", 5, {"104 columns", ways});
  for (const std::string how : {"format=gptq bits=8", "format=hf storage=nf4"}) {
    answer(quantise("there_is", odd + " overwrite=true " + how));
  }
  refused(train("odder", 92, 92), 5,
          {"92 rows", "hint: quantize takes format=hf storage=nf4 output_dir=DIR; export"});
}

// A hint beside what GGUF has no place for names no other GGUF file, and nothing that is refused
// with what else the command says.
TEST_F(SlowQuantiseStorage, HintsOfWhatGgufHasNoPlaceFor) {
  tiny_.must_train("dynamic", "method=full max_steps=1 model=" + tiny_.file("dynamic.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
      "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
      "tie_word_embeddings": true, "bos_token_id": 256, "eos_token_id": 257})"));
  const std::string model = "model=" + path("dynamic");
  for (const std::string how : {" format=gguf storage=q4_k_m", " format=gguf bits=8"}) {
    refused(model + how, 5,
            {"GGUF has no place for rope scaling \"dynamic\"",
             "hint: quantize takes format=gptq bits=4 storage=keep output_dir=DIR, or format=exl2 "
             "storage=keep output_dir=DIR, or format=hf storage=nf4 output_dir=DIR; export"});
  }
  for (const std::string how :
       {"format=gptq bits=4 storage=keep", "format=exl2 storage=keep", "format=hf storage=nf4"}) {
    answer(quantise("there_is", model + " storage=q4_k_m --dry-run " + how));
  }
}

TEST_F(SlowQuantiseStorage, GoesOnWhereItWasStopped) {
  const std::string command = quantise_gguf("q", "iq4_nl", "calibration_sequences=64");
  answer(command);
  const std::string whole = tiny_.text("q.gguf");
  fs::remove(path("q.gguf"));
  const fs::path progress = path("q.gguf") + ".unfinished/progress.json";
  Child child(command + " --quiet");
  child.until([&] { return fs::exists(progress) || fs::exists(path("q.gguf")); });
  child.stop(SIGKILL);
  const bool was_stopped = fs::exists(progress);  // it may have ended meanwhile
  fs::remove(path("q.gguf"));
  const std::string notes = answer(command)["notes"].dump();
  EXPECT_EQ(notes.find("continued after rounding") != notes.npos, was_stopped) << notes;
  EXPECT_EQ(tiny_.text("q.gguf"), whole);
  EXPECT_FALSE(fs::exists(progress));
}

TEST_F(SlowQuantiseStorage, RefusesValuesThatScalesOfF16Lose) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  set_largest(path("base"), name, 1e-6f);
  for (const std::string rounding : {"gptq", "nearest"}) {
    refused("format=gguf storage=q8_0 rounding=" + rounding, 5,
            {name + " has values of at most 1e-06, too small for scales of f16",
             "format=bnb, whose scales are f32, can hold them"});
  }
  answer(quantise("kept", "format=bnb"));
  set_largest(path("base"), name, 1e-20f);
  answer(quantise_gguf("zero", "q8_0"));
}

// Which would be in the way of another format.
TEST_F(SlowQuantiseStorage, KeepsNothingOfAModelThatIsRefused) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  set_largest(path("base"), name, std::numeric_limits<float>::quiet_NaN());
  for (const char* format : {"format=gguf storage=q8_0", "format=bnb"}) {
    SCOPED_TRACE(format);
    refused(format, 6, {name + " has values that are not finite"});
    EXPECT_FALSE(fs::exists(path("refused.unfinished")));
  }
}

TEST_F(SlowQuantiseStorage, Refusals) {
  refused("format=gguf", 2, {"format=gguf needs a storage", "storage=q4_k_m"});
  refused("format=hf", 2, {"format=hf needs a storage", "storage=nf4"});
  refused("format=gguf storage=q4_k_m bits=4", 2,
          {"bits is set", "storage determines it",
           "leave it out; storage=q4_k_m, for one, has bits and"});
  refused("format=gguf storage=q4_k_m group_size=32", 2, {"group_size is set"});
  for (const std::string format : {"format=bnb", "format=hf storage=nf4"}) {
    refused(format + " group_size=32", 2,
            {"group_size is set, but with format=hf or bnb storage determines it",
             "hint: leave it out; storage=nf4 has bits and groups of its own\n"});
  }
  refused("format=gguf storage=f16", 2, {"storage=f16 is not quantised", "export"});
  // Nothing is named that is refused as well.
  refused("format=gguf storage=int8", 2,
          {"storage=int8 cannot be written to a GGUF file", "quantize writes storage=q8_0 q4_0 "});
  refused("format=hf storage=int8", 2, {"cannot be written", "quantize writes storage=nf4\n"});
  refused("format=gguf storage=nf4", 2, {"cannot be written", "format=hf output_dir=DIR takes it"});
  refused("format=hf storage=q4_k_m", 2, {"storage=q4_k_m cannot be written", "output=FILE.gguf"});
  const Outcome dry = run(quantise_gguf("dry", "q4_k_m", "max_shard_size=1MB --dry-run") + " 2>&1");
  EXPECT_NE(dry.out.find("14 matrices"), std::string::npos) << dry.out;
  EXPECT_NE(dry.out.find("quantize does not use max_shard_size for a GGUF file"), std::string::npos)
      << dry.out;
  EXPECT_FALSE(fs::exists(path("dry.gguf")));
}

}  // namespace
}  // namespace jackscrew

// inspect, data, logits and doctor, through the program.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "formats/safetensors.h"
#include "tests/cli/expect_refused.h"
#include "tests/cli/run_program.h"

namespace jackscrew {
namespace {

using nlohmann::json;

TEST(Inspect, Model) {
  const json model = json::parse(run("inspect --json " + golden_model("gqa_tied")).out);
  EXPECT_EQ(model["architecture"], "LlamaForCausalLM");
  EXPECT_EQ(model["num_hidden_layers"], 3);
  EXPECT_EQ(model["num_attention_heads"], 4);
  EXPECT_EQ(model["num_key_value_heads"], 1);
  EXPECT_EQ(model["tie_word_embeddings"], true);
  EXPECT_TRUE(model["tokenizer"].is_null());
  int64_t elements = 0;
  int64_t bytes = 0;
  for (const auto& tensor : model["tensors"]) {
    int64_t size = 1;
    for (const auto& extent : tensor["shape"]) size *= extent.get<int64_t>();
    elements += size;
    bytes += tensor["bytes"].get<int64_t>();
    EXPECT_EQ(tensor["dtype"], "f32");
  }
  EXPECT_EQ(model["parameters"], elements);
  EXPECT_EQ(model["storage"]["f32"]["bytes"], bytes);
  EXPECT_EQ(model["storage"]["f32"]["elements"], elements);
  EXPECT_EQ(model["storage"]["f32"]["tensors"], model["tensors"].size());
}

TEST(Inspect, SaysThatAPathLeavesNoModelToShow) {
  const std::string path = golden_model("gqa_tied");
  EXPECT_EQ(run("inspect " + path + " model=" + golden_model("odd") + kErrorsOnly).out,
            "jackscrew: warning: inspect does not use model beside a path\n");
  EXPECT_EQ(run("inspect model=" + path + kErrorsOnly).out, "");
}

// In a directory that is here, a name is no repository of a hub.
TEST(Inspect, APathThatIsMistypedIsNothingToDownload) {
  const TemporaryDirectory directory("jackscrew_mistyped");
  fs::create_directory(directory.path() / "runs");
  const std::string inspect = "cd " + directory.path().string() + " && " + kProgram + " inspect ";
  const Outcome here = run_shell(inspect + "runs/fist" + kErrorsOnly);
  expect_refused(here, 5, {"model runs/fist does not exist\n"});
  EXPECT_EQ(here.out.find("hf download"), std::string::npos) << here.out;
  expect_refused(run_shell(inspect + "org/name" + kErrorsOnly), 5, {"hf download org/name"});
}

TEST(Inspect, TextListsTensorsOnRequest) {
  const std::string path = golden_model("odd");
  const Outcome brief = run("inspect " + path);
  EXPECT_EQ(brief.exit_code, 0);
  EXPECT_NE(brief.out.find("LlamaForCausalLM"), std::string::npos);
  EXPECT_EQ(brief.out.find("q_proj"), std::string::npos);
  EXPECT_NE(run("inspect --verbose " + path).out.find("q_proj"), std::string::npos);
}

TEST(Inspect, ShapesAndConfigs) {
  const json shape = json::parse(run("inspect llama-7b --json").out);
  EXPECT_EQ(shape["parameters"], 6738415616);
  EXPECT_TRUE(shape["tensors"].empty());
  EXPECT_EQ(run("inspect " + golden_model("odd/config.json")).exit_code, 0);
}

TEST(Inspect, Adapter) {
  const json adapter = json::parse(run("inspect --json " + golden_model("lora")).out);
  EXPECT_EQ(adapter["adapter"], "LORA");
  EXPECT_EQ(adapter["r"], 4);
  EXPECT_EQ(adapter["lora_alpha"], 8.0);
  EXPECT_EQ(adapter["target_modules"].size(), 4u);
  // A and B of four modules in three layers.
  EXPECT_EQ(adapter["tensors"].size(), 24u);
}

TEST(Inspect, Refusals) {
  EXPECT_EQ(run(std::string("inspect") + kErrorsOnly).exit_code, 2);
  EXPECT_EQ(run(std::string("inspect /nonexistent") + kErrorsOnly).exit_code, 5);
  EXPECT_EQ(run(std::string("inspect a b") + kErrorsOnly).exit_code, 2);
}

const std::string kBytes = " model=llama-9m tokenizer=bytes ";

TEST(Data, TokenizeJson) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string text = directory.file("text.txt", "Hi\n");
  const json whole = json::parse(run("data tokenize --json data=" + text + kBytes).out);
  EXPECT_EQ(whole["ids"], (json{256, 72, 105, 10}));
  EXPECT_EQ(whole["train"], (json{0, 1, 1, 1}));
  const std::string records = directory.file(
      "two.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"text\": \"c\"}\n");
  EXPECT_EQ(run("data tokenize --json data=" + records + kBytes).out,
            "{\"ids\": [256, 97, 98, 257], \"train\": [0, 0, 1, 1]}\n"
            "{\"ids\": [256, 99, 257], \"train\": [0, 1, 1]}\n");
  EXPECT_EQ(run("data tokenize data=" + text + kBytes).out, "256 72 105 10\n");
  // Whole, however short the sequences of a run are to be.
  EXPECT_EQ(
      json::parse(run("data tokenize --json sequence_len=2 data=" + text + kBytes).out)["ids"],
      whole["ids"]);
}

// Each key of a record may have another name, and is then read as if it had its own.
TEST(Data, ReadsRecordsByTheKeysThatAreNamed) {
  const TemporaryDirectory directory("jackscrew_data");
  const auto ids = [&](const std::string& record, const std::string& settings) {
    const std::string data = directory.file("one.jsonl", record + "\n");
    const Outcome outcome =
        run("data tokenize --json chat_template=chatml data=" + data + " " + settings + kBytes);
    EXPECT_EQ(outcome.exit_code, 0) << settings;
    return outcome.out;
  };
  const std::string plain =
      ids(R"({"system": "s", "instruction": "q", "input": "i", "output": "a"})", "");
  EXPECT_EQ(ids(R"({"rules": "s", "ask": "q", "on": "i", "say": "a"})",
                "field_system=rules field_instruction=ask field_input=on field_output=say"),
            plain);
  EXPECT_EQ(ids(R"({"body": "t"})", "field_text=body"), ids(R"({"text": "t"})", ""));
  const std::string turns = ids(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
      "");
  EXPECT_EQ(ids(R"({"talk": [{"who": "user", "what": "q"}, {"who": "assistant", "what": "a"}]})",
                "field_messages=talk message_field_role=who message_field_content=what"),
            turns);
}

TEST(Data, StatsJson) {
  const TemporaryDirectory directory("jackscrew_data");
  // 4, 8 and 12 tokens with BOS and EOS, the longest cut to 8: rows of 4 + 4 empty, 8, 8 packed.
  const std::string data =
      directory.file("data.jsonl",
                     "{\"text\": \"ab\"}\n{\"text\": \"abcdef\"}\n{\"text\": \"abcdefghij\"}\n"
                     "{\"prompt\": \"abcdefghij\", \"completion\": \"k\"}\n");
  const json stats = json::parse(run("data stats --json sequence_len=8 data=" + data + kBytes).out);
  EXPECT_EQ(stats["records"], 4);
  EXPECT_EQ(stats["examples"], 3);
  EXPECT_EQ(stats["truncated"], 2);
  EXPECT_EQ(stats["longest_record"], 13);
  EXPECT_EQ(stats["dropped"], 1);
  EXPECT_EQ(stats["repeated"], 0);
  EXPECT_EQ(stats["tokens"], 20);
  EXPECT_EQ(stats["trained_tokens"], 17);  // the first of each is predicted from nothing
  EXPECT_EQ(stats["lengths"]["shortest"], 4);
  EXPECT_EQ(stats["lengths"]["median"], 8);
  EXPECT_EQ(stats["lengths"]["longest"], 8);
  EXPECT_EQ(stats["rows"], 3);
  EXPECT_DOUBLE_EQ(stats["fill_rate"].get<double>(), 20.0 / 24.0);
  ASSERT_EQ(stats["warnings"].size(), 1u);
  EXPECT_EQ(
      stats["warnings"][0].get<std::string>().find("2 of 4 records are longer than sequence_len"),
      0u);
  const std::string text = run("data stats sequence_len=8 data=" + data + kBytes + " 2>&1").out;
  // 29 bytes of texts in 37 tokens with BOS and EOS, whatever is cut from them.
  for (const char* part : {"2 cut to 8 tokens, 1 skipped (nothing to train on)\n", "83.3% filled",
                           "0.78 bytes per token, BOS, EOS and the chat template's among them\n",
                           "warning: 2 of 4 records are longer than sequence_len"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(Data, PreviewMarksWhatIsTrained) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string line = "{\"prompt\": \"ask\\u001b[2J\", \"completion\": \"answer\"}\n";
  const std::string data = directory.file("data.jsonl", line + line + line + line + line);
  const Outcome outcome = run("data preview data=" + data + kBytes);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.out.find("<s>ask\uFFFD[2J[[answer</s>]]"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  EXPECT_NE(outcome.out.find("and 2 more records"), std::string::npos);
}

// What it shows is what training would make of the records.
TEST(Data, PreviewCutsAndLeavesOut) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string data =
      directory.file("data.jsonl",
                     "{\"prompt\": \"ask\", \"completion\": \"answer\"}\n"
                     "{\"prompt\": \"a long one\", \"completion\": \"answer\"}\n"
                     "{\"text\": \"text\"}\n");
  const std::string command = "data preview sequence_len=8 data=" + data + kBytes;
  EXPECT_EQ(run(command).out, data + ":1: 11 tokens, cut to 8, 4 trained on\n<s>ask[[answ]]\n\n" +
                                  data +
                                  ":2: 18 tokens, cut to 8, skipped: nothing to train on\n"
                                  "<s>a long \n\n" +
                                  data + ":3: 6 tokens, 5 trained on\n<s>[[text</s>]]\n\n");
  EXPECT_EQ(run(command + "excess_length_strategy=drop").out,
            data + ":1: 11 tokens, skipped: longer than 8\n<s>askanswer</s>\n\n" + data +
                ":2: 18 tokens, skipped: longer than 8\n<s>a long oneanswer</s>\n\n" + data +
                ":3: 6 tokens, 5 trained on\n<s>[[text</s>]]\n\n");
  const Outcome refused = run(command + "excess_length_strategy=error 2>&1");
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_NE(refused.out.find(data + ":1: 11 tokens, and sequence_len is 8"), std::string::npos)
      << refused.out;
  const std::string document = directory.file("text.txt", "0123456789");
  EXPECT_EQ(
      run("data preview sequence_len=8 data_weights=0,1 data=" + data + "," + document + kBytes)
          .out,
      document +
          ": 11 tokens in windows of 8; all but the first of each are trained on\n"
          "<s>[[0123456789]]\n\n");
}

TEST(Data, PreviewWithoutAModelShowsRecords) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string pair = "{\"question\": \"ask\", \"answer\": \"say\\u001b[2J\"}\n";
  const std::string data = directory.file("data.jsonl", pair + pair + pair + pair);
  const std::string command = "data preview quiet=true data=" + data;
  const Outcome shown = run(command + " field_instruction=question field_output=answer");
  EXPECT_EQ(shown.exit_code, 0);
  const std::string text =
      ": conversation of 2 messages\n  user: ask\n  assistant: [[say\uFFFD[2J]]\n\n";
  EXPECT_EQ(shown.out,
            data + ":1" + text + data + ":2" + text + data + ":3" + text + "and 1 more records\n");
  expect_refused(run(command + kErrorsOnly), 4,
                 {data + ":1: nothing to train on: its keys are question, answer",
                  "set field_instruction=question field_output=answer"});
  expect_refused(run("data stats data=" + data + kErrorsOnly), 2, {"data stats needs a tokenizer"});
}

TEST(Data, AnEmptyFileHasNothingToShow) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string data = directory.file("data.jsonl", "");
  expect_refused(run("data preview data=" + data + kErrorsOnly), 4, {data + " has no record"});
  for (const std::string what : {"preview", "tokenize"}) {
    expect_refused(run("data " + what + " tokenizer=bytes data=" + data + kErrorsOnly), 4,
                   {data + " has no record"});
  }
}

TEST(Data, WeightsMustLeaveSomething) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string data = directory.file("data.jsonl", "{\"text\": \"a\"}\n");
  for (const std::string what : {"preview quiet=true", "preview tokenizer=bytes",
                                 "tokenize tokenizer=bytes", "stats tokenizer=bytes"}) {
    expect_refused(run("data " + what + " data_weights=0 data=" + data + kErrorsOnly), 2,
                   {"data_weights leave nothing to train on"});
    expect_refused(
        run("data " + what + " data_weights=0,0 data=" + data + "," + data + kErrorsOnly), 2,
        {"data_weights leave nothing to train on"});
  }
}

// A text is one record, in however many parts it is read.
TEST(Data, ALongTextIsOneRecord) {
  const TemporaryDirectory directory("jackscrew_data");
  const size_t size = (size_t{16} << 20) + 1000;
  const std::string long_text = directory.file("long.txt", std::string(size, 'a'));
  const std::string data = " data=" + long_text + "," + directory.file("short.txt", "bcd") + kBytes;
  const Outcome shown = run("data preview sequence_len=8" + data);
  const std::string windows = " in windows of 8; all but the first of each are trained on\n";
  EXPECT_TRUE(shown.out.starts_with(long_text + ": tokens" + windows)) << shown.out.substr(0, 200);
  EXPECT_NE(shown.out.find("short.txt: 4 tokens" + windows), std::string::npos);
  EXPECT_EQ(shown.out.find(long_text, 1), std::string::npos);
  for (const char* style : {"", "--json "}) {
    const std::string command = std::string("data tokenize ") + style + data;
    EXPECT_EQ(run(command + " | wc -l").out, "2\n");
    EXPECT_EQ(run(command + " | head -n 1 | sed 's/.train.*//' | wc -w").out,
              std::to_string(size + (*style == 0 ? 1 : 2)) + "\n");
  }
}

TEST(Data, NamedFieldsThatNoRecordHasAreWarnedOf) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string data = directory.file(
      "data.jsonl", "{\"instruction\": \"a\", \"context\": \"c\", \"output\": \"b\"}\n");
  const auto said = [&](const std::string& command) {
    return run("data " + command + " data=" + data + kErrorsOnly).out;
  };
  for (const std::string what : {"preview quiet=true", "preview tokenizer=bytes",
                                 "tokenize tokenizer=bytes", "stats tokenizer=bytes"}) {
    EXPECT_NE(said(what + " field_input=contxt")
                  .find("warning: field_input=contxt names a key that no record has"),
              std::string::npos);
    EXPECT_EQ(said(what + " field_input=context").find("warning"), std::string::npos);
  }
}

TEST(Data, PreviewKnowsNoKeysOfWhatItHasNotRead) {
  const TemporaryDirectory directory("jackscrew_data");
  std::string records;
  for (int i = 0; i < 1100; ++i) {
    records += i < 1050 ? "{\"text\": \"a\"}\n" : "{\"persona\": \"b\", \"text\": \"a\"}\n";
  }
  const std::string command =
      "data preview field_system=persona data=" + directory.file("data.jsonl", records);
  const std::string warning = "warning: field_system=persona names a key that no record ";
  for (const std::string& tokenizer : {std::string(" quiet=true"), kBytes}) {
    const std::string said = run(command + tokenizer + kErrorsOnly).out;
    EXPECT_NE(said.find(warning + "of the 1000 read has"), std::string::npos) << said;
    const std::string few = run(command + tokenizer + " max_samples=1" + kErrorsOnly).out;
    EXPECT_NE(few.find(warning + "of the 1 read has"), std::string::npos) << few;
  }
}

// Of a data set no more is read than is needed for the warnings, be it good or bad.
TEST(Data, PreviewDoesNotCountWhatItHasNotRead) {
  const TemporaryDirectory directory("jackscrew_data");
  std::string records;
  for (int i = 0; i < 1200; ++i) records += i % 10 == 0 ? "{\"id\": 1}\n" : "{\"text\": \"a\"}\n";
  const std::string command =
      "data preview quiet=true on_bad_record=skip data=" + directory.file("data.jsonl", records);
  for (const std::string& tokenizer : {std::string(), kBytes}) {
    const std::string shown = run(command + tokenizer).out;
    EXPECT_NE(shown.find("and at least 897 more records"), std::string::npos) << shown;
  }
}

// Neither a page of nothing nor a page of space is what was meant.
TEST(Data, PreviewWarnsOfAnEmptyText) {
  const TemporaryDirectory directory("jackscrew_data_preview_empty_text");
  const std::string warning = "warning: 1 record has an empty text or answer\n";
  for (const char* text : {"", " \n"}) {
    const std::string data = directory.file("data.txt", text);
    for (const std::string& tokenizer : {std::string(" "), kBytes}) {
      const Outcome shown = run("data preview data=" + data + tokenizer + " 2>&1");
      EXPECT_EQ(shown.exit_code, 0) << shown.out;
      EXPECT_NE(shown.out.find(warning), std::string::npos) << shown.out;
    }
  }
  const std::string data = directory.file("data.txt", "a text");
  EXPECT_EQ(run("data preview data=" + data + " 2>&1").out.find("warning"), std::string::npos);
}

TEST(Data, PreviewShowsCarriageReturns) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string data = directory.file("data.jsonl", "{\"text\": \"Say\\r\\nit\"}\n");
  const std::string shown = run("data preview tokenizer=bytes data=" + data).out;
  EXPECT_NE(shown.find("Say\\r\nit"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("\uFFFD"), std::string::npos) << shown;
}

TEST(Data, BadRecordsEndItOrAreSkipped) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  const std::string data = directory.file(
      "data.jsonl", good + "{\"prompt\": \"a\"\n" + "{\"id\": 1}\n" + good +
                        "{\"messages\": [{\"role\": \"nobody\", \"content\": \"a\"}]}\n");
  const std::string settings = " data=" + data + kBytes;
  expect_refused(run("data stats" + settings + kErrorsOnly), 4,
                 {data + ":2: not valid JSON", "on_bad_record=skip leaves such records out"});
  const json stats = json::parse(run("data stats --json on_bad_record=skip" + settings).out);
  EXPECT_EQ(stats["records"], 5);
  EXPECT_EQ(stats["examples"], 2);
  EXPECT_EQ(stats["bad_records"], 3);
  const std::string warning =
      "skipped 3 of 5 records that cannot be read; the first: " + data + ":2: not valid JSON";
  EXPECT_EQ(stats["warnings"][0].get<std::string>().find(warning), 0u) << stats;
  for (const char* action : {"stats", "preview", "tokenize"}) {
    const Outcome outcome =
        run("data " + std::string(action) + " on_bad_record=skip" + settings + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    EXPECT_NE(
        outcome.out.find("warning: " +
                         (action == std::string("stats") ? warning : std::string("skipped 3 of "))),
        std::string::npos)
        << outcome.out;
  }
  EXPECT_EQ(run("data preview on_bad_record=skip quiet=true data=" + data).exit_code, 0);
  // With nothing left, what is wrong is still said.
  const std::string bad = directory.file("bad.jsonl", "{\"id\": 1}\n");
  expect_refused(run("data stats on_bad_record=skip" + kBytes + "data=" + bad + kErrorsOnly), 4,
                 {"1 record cannot be read; the first: " + bad + ":1: nothing to train on"});
  // Rows of a .csv that are too long are records, too.
  const std::string table = directory.file("t.csv", "prompt,completion\na,b\na,b,c\n");
  EXPECT_EQ(json::parse(run("data stats --json on_bad_record=skip" + kBytes + "data=" + table)
                            .out)["bad_records"],
            1);
}

TEST(Data, ATokenizerWillDo) {
  const TemporaryDirectory directory("jackscrew_data");
  const std::string text = directory.file("text.txt", "Hello world");
  const std::string tokens = read_text(fs::path(kTestData) / "text/data/smollm_tokenizer.json");
  const std::string file = directory.file("tokenizer.json", tokens);
  const std::string command = "data tokenize data=" + text + " ";
  const Outcome given = run(command + "tokenizer=" + directory.path().string());
  ASSERT_EQ(given.exit_code, 0);
  EXPECT_FALSE(given.out.empty());
  EXPECT_EQ(run(command + "tokenizer=" + file).out, given.out);
  EXPECT_EQ(run(command + "model=" + directory.path().string()).out, given.out);
  // It goes before a model's own.
  nlohmann::json config = nlohmann::json::parse(read_text(golden_model("odd") + "/config.json"));
  config["vocab_size"] = 600;
  directory.file("config.json", config.dump());
  const Outcome bytes = run(command + "model=" + directory.path().string() + " tokenizer=bytes");
  EXPECT_EQ(bytes.exit_code, 0);
  EXPECT_NE(bytes.out, given.out);
  directory.file("config.json", read_text(golden_model("odd") + "/config.json"));
  expect_refused(run(command + "model=" + directory.path().string() + kErrorsOnly), 5,
                 {"the tokenizer has 600 tokens, the model only "});
  expect_refused(run(command + "tokenizer=" + text + kErrorsOnly), 5,
                 {"there is no tokenizer in "});
  expect_refused(run(command + "tokenizer=nowhere" + kErrorsOnly), 5,
                 {"tokenizer nowhere does not exist"});
}

TEST(Data, Refusals) {
  EXPECT_EQ(run("data look data=x" + kBytes + kErrorsOnly).exit_code, 2);
  EXPECT_EQ(run("data stats" + kBytes + kErrorsOnly).exit_code, 2);
  EXPECT_EQ(run("data stats data=/nonexistent" + kBytes + kErrorsOnly).exit_code, 4);
}

TEST(SlowLogits, IdsAndLogitsOfTheFirstWindow) {
  const TemporaryDirectory directory("jackscrew_logits");
  const std::string text = directory.file("text.txt", "Hello, world");
  const std::string output = (directory.path() / "out.safetensors").string();
  const std::string command =
      "logits init=random data=" + text + kBytes + "output=" + output + " sequence_len=5";
  ASSERT_EQ(run(command).exit_code, 0);
  const SafetensorsFile file(output);
  const SafetensorsEntry* ids = file.find("ids");
  const SafetensorsEntry* logits = file.find("logits");
  ASSERT_TRUE(ids != nullptr && logits != nullptr);
  EXPECT_EQ(ids->dtype, "I32");
  EXPECT_EQ(ids->shape, (std::vector<int64_t>{5}));
  std::vector<int32_t> values(5);
  std::memcpy(values.data(), ids->bytes.data(), ids->bytes.size());
  EXPECT_EQ(values, (std::vector<int32_t>{256, 'H', 'e', 'l', 'l'}));
  EXPECT_EQ(logits->dtype, "F32");
  EXPECT_EQ(logits->shape, (std::vector<int64_t>{5, 32000}));
  EXPECT_EQ(run("--help").out.find("logits"), std::string::npos);
  EXPECT_EQ(run("help logits").exit_code, 0);
}

// Neither replaced nor joined by a file that would be taken for one of them.
TEST(Logits, LeavesWhatItReads) {
  const TemporaryDirectory directory("jackscrew_logits_read");
  const std::string text = directory.file("text.txt", "Hello, world");
  const fs::path model = directory.path() / "model", adapter = directory.path() / "adapter";
  fs::copy(golden_model("gqa_tied"), model);
  fs::copy(golden_model("lora"), adapter);
  const fs::path cache = directory.path() / "cache";
  fs::create_directory(cache);
  fs::rename(model / "model.safetensors", cache / "blob");
  fs::create_symlink(cache / "blob", model / "model.safetensors");
  const auto refused = [&](const fs::path& output, const char* says) {
    const auto before = fs::exists(output) ? read_text(output) : std::string();
    expect_refused(
        run("logits overwrite=true tokenizer=bytes data=" + text + " model=" + model.string() +
            " adapter=" + adapter.string() + " output=" + output.string() + kErrorsOnly),
        2, {output.string() + says});
    EXPECT_EQ(fs::exists(output) ? read_text(output) : std::string(), before);
  };
  for (const fs::path& file : {model / "config.json", model / "model.safetensors", cache / "blob",
                               adapter / "adapter_model.safetensors"}) {
    refused(file, " is what is read, and would be replaced");
  }
  refused(model / "tokenizer.json", " would be among the files of ");
  refused(adapter / "new.safetensors", " would be among the files of ");
}

TEST(Doctor, SaysWhatItFinds) {
  const json found = json::parse(run("doctor --json").out);
  for (const char* key : {"version", "cpu", "isa", "onednn"}) EXPECT_TRUE(found[key].is_string());
  EXPECT_GE(found["threads"].get<int>(), 1);
  EXPECT_GT(found["memory_total"].get<int64_t>(), found["memory_available"].get<int64_t>());
  const std::string text = run("doctor").out;
  EXPECT_NE(text.find("oneDNN: " + found["onednn"].get<std::string>()), std::string::npos);
  const std::string patterns = found["unicode"]["patterns"].get<std::string>();
  EXPECT_NE(text.find("Unicode of tokenizers: " + patterns + " in "), std::string::npos) << text;
  EXPECT_NE(text.find(found["mpi"]["found"].get<bool>() ? "MPI: Open MPI" : "MPI: missing: "),
            std::string::npos)
      << text;
  for (const auto& [name, device] : found["devices"].items()) {
    const char* lacks = device["found"].get<bool>() ? "" : "missing (only device=cuda needs it): ";
    const std::string line = name + ": " + lacks + device["text"].get<std::string>() + "\n";
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_FALSE(found.contains("ranks"));
}

// The environment says that there are others, and nobody is there.
TEST(Doctor, OthersThatCannotBeReached) {
  EXPECT_EQ(run_shell(std::string("OMPI_COMM_WORLD_SIZE=1 ") + kProgram + " doctor").exit_code, 0);
  for (const char* variable :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK=0 SLURM_STEP_NUM_TASKS"}) {
    // Open MPI leaks what it had begun.
    const std::string environment =
        std::string("env -u OMPI_COMM_WORLD_SIZE ASAN_OPTIONS=detect_leaks=0 ") + variable;
    const auto doctor = [&](const char* value) {
      return run_shell(environment + "=" + value + " " + kProgram + " doctor 2>&1");
    };
    const Outcome three = doctor("3");
    EXPECT_EQ(three.exit_code, 7) << three.out;
    EXPECT_NE(three.out.find("\nhint: "), std::string::npos) << three.out;
    EXPECT_EQ(doctor("0").exit_code, 2);
    EXPECT_EQ(doctor("two").exit_code, 2);
  }
}

}  // namespace
}  // namespace jackscrew

#include "base/options.h"

#include <gtest/gtest.h>

#include "base/command_line.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

constexpr OptionSpec kShape[] = {
    {.name = "rank",
     .type = OptionType::integer,
     .default_text = "16",
     .help = "rank of the adapter",
     .aliases = "lora_rank r",
     .min = 1,
     .max = 4096},
    {.name = "alpha",
     .type = OptionType::number,
     .default_text = "auto",
     .help = "scale",
     .choices = "auto",
     .min = 0},
    {.name = "targets",
     .type = OptionType::list,
     .default_text = "q_proj,v_proj",
     .help = "layers"},
};
constexpr OptionSpec kOther[] = {
    {.name = "model", .type = OptionType::text, .default_text = "", .help = "the model"},
    {.name = "schedule",
     .type = OptionType::text,
     .default_text = "cosine",
     .help = "course",
     .choices = "constant linear cosine"},
    {.name = "memory", .type = OptionType::bytes, .default_text = "1GiB", .help = "budget"},
    {.name = "packing", .type = OptionType::boolean, .default_text = "true", .help = "pack"},
    {.name = "recompute",
     .type = OptionType::boolean,
     .default_text = "auto",
     .help = "recompute",
     .choices = "auto"},
};
constexpr OptionSpec kCall[] = {
    {.name = "json", .type = OptionType::boolean, .default_text = "false", .help = "print JSON"},
};

OptionSet sample() {
  OptionSet options;
  options.add({"Shape", kShape});
  options.add({"Other", kOther});
  options.add({"Call", kCall, false});
  return options;
}

template <class Action>
std::string usage_error(const Action& action) {
  return error_of(ErrorKind::usage, action);
}

TEST(Options, DefaultsAndTypes) {
  const OptionSet options = sample();
  EXPECT_EQ(options.integer("rank"), 16);
  EXPECT_EQ(options.integer("lora-rank"), 16);
  EXPECT_TRUE(options.is_word("alpha"));
  EXPECT_FALSE(options.is_word("schedule"));
  EXPECT_THROW(options.number("alpha"), Error);
  EXPECT_THROW(options.number("rank"), Error);
  EXPECT_THROW(options.text("nothing"), Error);
  EXPECT_EQ(options.list("targets"), (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(options.bytes("memory"), int64_t{1} << 30);
  EXPECT_TRUE(options.boolean("packing"));
  EXPECT_EQ(options.text("model"), "");
  EXPECT_FALSE(options.was_set("rank"));
  EXPECT_EQ(options.origin("rank"), "default");
}

TEST(Options, LaterCallsWinAndOriginsAreKept) {
  OptionSet options = sample();
  options.set("r", "8", "run.yaml:1");
  options.set("lora-rank", "32", "command line");
  options.imply("rank", "64", "method x");
  EXPECT_EQ(options.integer("rank"), 32);
  EXPECT_TRUE(options.was_set("rank"));
  EXPECT_EQ(options.origin("rank"), "command line");
  options.imply("alpha", "2.5", "method x");
  EXPECT_EQ(options.number("alpha"), 2.5);
  EXPECT_FALSE(options.was_set("alpha"));
  options.imply("alpha", "3.5", "method y");
  EXPECT_EQ(options.number("alpha"), 3.5);
}

TEST(Options, RefusalsNameKeyValueExpectationAndOrigin) {
  OptionSet options = sample();
  const auto refusal = [&](const char* name, std::string_view text) {
    return usage_error([&] { options.set(name, text, "run.yaml:3"); });
  };
  EXPECT_EQ(refusal("ranks", "1"), "run.yaml:3: unknown option \"ranks\" | did you mean rank?");
  EXPECT_EQ(refusal("zzzzzz", "1"),
            "run.yaml:3: unknown option \"zzzzzz\" | --help after a command lists its options");
  EXPECT_EQ(refusal("no-packing", "true"),
            "run.yaml:3: unknown option \"no-packing\" | packing=false");
  EXPECT_EQ(refusal("no-packing", "false"),
            "run.yaml:3: unknown option \"no-packing\" | packing=true");
  EXPECT_EQ(refusal("no_rank", "1"),
            "run.yaml:3: unknown option \"no_rank\" | --help after a command lists its options");
  EXPECT_EQ(refusal("model", std::string_view("a\0b", 3)),
            "run.yaml:3: model has a character that is 0 | leave it out: \"\\0\" in YAML is such a "
            "character");
  EXPECT_EQ(refusal("r", "many"),
            "run.yaml:3: rank is \"many\", expected a whole number from 1 to 4096 | ");
  EXPECT_EQ(refusal("alpha", "-1"),
            "run.yaml:3: alpha is \"-1\", expected a number of at least 0, or auto | ");
  EXPECT_EQ(refusal("schedule", "cosin"),
            "run.yaml:3: schedule is \"cosin\", expected one of constant, linear, cosine | "
            "did you mean cosine?");
  EXPECT_EQ(refusal("schedule", "Cosine"),
            "run.yaml:3: schedule is \"Cosine\", and capitals count | did you mean cosine?");
  for (const char* bad : {"0", "4097", "1.5", "", "9223372036854775808", " 4"})
    refusal("rank", bad);
  for (const char* bad : {"nan", "inf", "1e999", "x"}) refusal("alpha", bad);
  for (const char* bad : {"1QB", "-1", ""}) refusal("memory", bad);
  EXPECT_TRUE(refusal("memory", "16").ends_with(" | write the unit: memory=16GiB"));
  EXPECT_TRUE(refusal("memory", "65535").ends_with(" | write the unit: memory=65535GiB"));
  EXPECT_TRUE(refusal("memory", "1002431").ends_with(" | write the unit: memory=1002431B"));
  // With a unit these would be refused as well.
  for (const char* bad : {"inf", "nan", "-1", "1e300"}) {
    EXPECT_TRUE(refusal("memory", bad).ends_with(" | leave it out, or write a size: memory=16GiB"))
        << bad;
  }
  for (const char* bad : {"maybe", ""}) refusal("packing", bad);
  refusal("targets", "a,,b");
  EXPECT_EQ(options.integer("rank"), 16);  // a refused value changes nothing
  const std::string nested = usage_error([&] {
    options.set({"rank", "", "f", std::vector<std::string>{"1", "2"}});
  });
  EXPECT_EQ(nested, "f: rank is \"[1, 2]\", expected a whole number from 1 to 4096 | ");
  EXPECT_EQ(usage_error([&] { options.require("model", "train"); }),
            "train needs model | give model=... (the model)");
}

TEST(Options, DuplicateNamesAndBadDefaultsAreFaults) {
  constexpr OptionSpec kAgain[] = {
      {.name = "lora-rank", .type = OptionType::text, .default_text = "", .help = ""}};
  OptionSet options = sample();
  EXPECT_THROW(options.add({"Again", kAgain}), Error);
  constexpr OptionSpec kBad[] = {
      {.name = "n", .type = OptionType::integer, .default_text = "0", .help = "", .min = 1}};
  EXPECT_THROW(OptionSet().add({"Bad", kBad}), Error);
}

TEST(Options, DumpStandsInTableOrder) {
  OptionSet options = sample();
  options.set("model", "my models/\"a\": b", "x");
  options.set("targets", "[q_proj, \"x\"]", "x");
  const std::string skipped[] = {"Other"};
  EXPECT_EQ(options.to_yaml(skipped),
            "# Shape\n"
            "rank: 16                               # rank of the adapter\n"
            "alpha: auto                            # scale\n"
            "targets: [q_proj, \"\\\"x\\\"\"]             # layers\n");
  const std::string all = options.to_yaml();
  EXPECT_NE(all.find("model: \"my models/\\\"a\\\": b\""), std::string::npos);
  EXPECT_EQ(all.find("json"), std::string::npos);
}

TEST(Options, YamlScalarsAreQuotedWhereNeeded) {
  EXPECT_EQ(yaml_scalar("a/b-c_1.0"), "a/b-c_1.0");
  EXPECT_EQ(yaml_scalar("1e-5"), "1e-5");
  EXPECT_EQ(yaml_scalar(""), "\"\"");
  EXPECT_EQ(yaml_scalar("null"), "\"null\"");
  EXPECT_EQ(yaml_scalar("-x"), "\"-x\"");
  EXPECT_EQ(yaml_scalar("true"), "true");
  for (const std::string typed :
       {"yes", "True", "off", "0x10", "2026-01-01", "1e5", ".5", ".NaN"}) {
    EXPECT_EQ(yaml_scalar(typed, true), "\"" + typed + "\"");
  }
  EXPECT_EQ(yaml_scalar("./on/y", true), "./on/y");
  EXPECT_EQ(yaml_scalar("a: b #c\n\x01\\"), "\"a: b #c\\n\\x01\\\\\"");
}

CommandLine parse(const std::vector<std::string>& arguments) {
  return parse_command_line(arguments, sample());
}

TEST(CommandLine, AllSpellingsAreTheSame) {
  const CommandLine line = parse({"run.yaml", "rank=1", "--rank=2", "--rank", "3", "--packing",
                                  "--json", "false", "model=a=b", "--alpha", "-1", "dir/a=b"});
  EXPECT_EQ(line.operands, (std::vector<std::string>{"run.yaml", "dir/a=b"}));
  std::string seen;
  for (const Assignment& assignment : line.assignments) {
    seen += assignment.name + ":" + assignment.text + ";";
    EXPECT_EQ(assignment.origin, "command line");
  }
  EXPECT_EQ(seen, "rank:1;rank:2;rank:3;packing:true;json:false;model:a=b;alpha:-1;");
}

TEST(CommandLine, BooleansTakeOnlyTheirOwnValues) {
  const CommandLine line = parse({"--packing", "stats", "--recompute", "auto", "--json"});
  EXPECT_EQ(line.operands, std::vector<std::string>{"stats"});
  EXPECT_EQ(line.assignments[0].text, "true");
  EXPECT_EQ(line.assignments[1].text, "auto");
  EXPECT_EQ(line.assignments[2].text, "true");
}

TEST(CommandLine, DoubleDashEndsOptions) {
  const CommandLine line = parse({"--", "--rank", "a=b"});
  EXPECT_EQ(line.operands, (std::vector<std::string>{"--rank", "a=b"}));
  EXPECT_TRUE(line.assignments.empty());
}

TEST(CommandLine, Refusals) {
  EXPECT_EQ(usage_error([] {
              parse({"--rnk", "1"});
            }),
            "command line: unknown option \"rnk\" | did you mean rank?");
  EXPECT_EQ(usage_error([] { parse({"--rank"}); }),
            "--rank needs a value | expected a whole number from 1 to 4096");
  usage_error([] { parse({"--model", "--json"}); });
  EXPECT_EQ(usage_error([] {
              parse({"rank=1", "--lora-rank", "2"});
            }),
            "command line: rank and lora-rank are two names of one option | leave one of them out; "
            "rank is its name here");
  EXPECT_EQ(parse({"lora_rank=1", "lora-rank=2"}).assignments.size(), 2u);
  usage_error([] { parse({"-x"}); });
}

// What a list has comes back from its own text.
TEST(OptionSet, ItemsOfListsMayHaveCommas) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"a,b", {"a", "b"}},
      {"a\\,b,c", {"a,b", "c"}},
      {"[a\\,b, c]", {"a,b", "c"}},
      {"layers.[0-9]{1,2}.q=4,k=8", {"layers.[0-9]{1,2}.q=4", "k=8"}},
      {"a{b,c", {"a{b", "c"}},
      {"a}b,c", {"a}b", "c"}},
      {"[qk].*|.*[v]", {"[qk].*|.*[v]"}},
      {"[[qk].*, v]", {"[qk].*", "v"}},
      {R"(["a", 'b,c' ,"d"])", {"a", "b,c", "d"}},
      {R"(["layers\\.0", "say \"a\""])", {"layers\\.0", "say \"a\""}},
      {"[\"a\"b, 'c]", {"\"a\"b", "'c"}},
      {"\"a\",b", {"\"a\"", "b"}}};
  for (const auto& [text, items] : cases) {
    OptionSet options = sample();
    options.set("targets", text, "command line");
    EXPECT_EQ(options.list("targets"), items) << text;
    options.set("targets", std::string(options.at("targets", "a test").text), "again");
    EXPECT_EQ(options.list("targets"), items) << text;
  }
  // A pattern is still one where it is taken whole.
  OptionSet options = sample();
  options.set("targets", "layers.[0-9]{1,2}.q", "command line");
  EXPECT_EQ(options.at("targets", "a test").text, "layers.[0-9]{1,2}.q");
}

TEST(OptionSet, TheSameValueMayBeWrittenInSeveralWays) {
  const auto same = [](OptionType type, const std::string& a, const std::string& b) {
    OptionValue first, second;
    first.spec = second.spec = {.name = "x", .type = type, .default_text = "", .help = ""};
    first.text = a;
    second.text = b;
    return same_value(first, second);
  };
  EXPECT_TRUE(same(OptionType::number, "1e-4", "0.0001"));
  EXPECT_FALSE(same(OptionType::number, "1e-4", "2e-4"));
  EXPECT_FALSE(same(OptionType::number, "auto", "best"));
  EXPECT_FALSE(same(OptionType::number, "auto", "0"));
  EXPECT_TRUE(same(OptionType::integer, "7", "007"));
  EXPECT_TRUE(same(OptionType::boolean, "true", "yes"));
  EXPECT_FALSE(same(OptionType::boolean, "true", "auto"));
  EXPECT_TRUE(same(OptionType::bytes, "1GiB", "1024MiB"));
  EXPECT_FALSE(same(OptionType::text, "1", "1.0"));
  EXPECT_TRUE(same(OptionType::list, "a,b", "a,b"));
}

}  // namespace
}  // namespace jackscrew

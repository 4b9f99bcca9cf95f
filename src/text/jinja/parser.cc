#include "text/jinja/parser.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>

#include "text/jinja/expression_parser.h"

namespace jackscrew::jinja {

namespace {

constexpr int kMaxTagNesting = 60;  // of tags

using Ends = std::initializer_list<std::string_view>;

// The names that a scope mentions itself, not in scopes within it.
//
// jinja2 compiles scopes to Python functions, so it decides once for a whole scope what a name is.
// A name is local to the scope from its beginning if it is assigned before it is read, outside of
// {% if %}, and no enclosing scope mentions it. It is then undefined until it is assigned, even
// where the caller passes a variable of that name; inner scopes see that too.
struct ScopeNames {
  explicit ScopeNames(ScopeNames* around) : outer(around) {}

  ScopeNames* outer;
  int branches = 0;                   // number of enclosing {% if %}
  std::map<std::string, bool> names;  // name -> whether it is local, as far as this scope shows
  std::shared_ptr<std::vector<std::string>> undefined_at_start =
      std::make_shared<std::vector<std::string>>();

  void load(const std::string& name) { names.emplace(name, false); }
  void store(const std::string& name) { names.emplace(name, branches == 0); }

  // Call once all scopes are complete.
  void resolve() const {
    for (const auto& [name, own] : names) {
      bool mentioned = !own;
      for (const ScopeNames* scope = outer; scope != nullptr; scope = scope->outer) {
        mentioned = mentioned || scope->names.contains(name);
      }
      if (!mentioned) undefined_at_start->push_back(name);
    }
  }
};

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block parse_template() {
    Block block = in_scope([&] { return parse_until({}); });
    for (const ScopeNames& scope : scopes_) scope.resolve();
    return block;
  }

 private:
  void note_load(const std::string& name) override {
    scope_->load(name);
    if (name == "caller") {
      for (MacroBody* macro : macros_) macro->uses_caller = true;
    }
  }

  // Runs `parse` in a new scope. `parameters` are assigned from outside.
  template <typename Parse>
  Block in_scope(const Parse& parse, const std::vector<std::string>& parameters = {}) {
    ScopeNames& scope = scopes_.emplace_back(scope_);
    for (const std::string& name : parameters) scope.load(name);
    scope_ = &scope;
    Block block{parse(), scope.undefined_at_start};
    scope_ = scope.outer;
    return block;
  }

  using Parse = Statement (Parser::*)(int line);
  struct Tag {
    std::string_view name;
    Parse parse;
  };
  static const Tag kTags[10];

  // Parses text and tags up to a tag with one of the given names; of that tag only {% is consumed.
  Statements parse_until(Ends ends) {
    Statements statements;
    while (current().kind != Token::Kind::end) {
      const Token token = take();
      switch (token.kind) {
        case Token::Kind::data:
          statements.push_back({token.line, Output{constant(token)}});
          break;
        case Token::Kind::print_begin:
          statements.push_back({token.line, Output{parse_tuple()}});
          expect(Token::Kind::print_end);
          break;
        default:
          if (std::any_of(ends.begin(), ends.end(),
                          [&](std::string_view end) { return current().is_name(end); })) {
            return statements;
          }
          statements.push_back(parse_tag());
          expect(Token::Kind::block_end);
      }
    }
    if (ends.size() > 0) {
      fail_here(fmt::format("{{% {} %}} of line {}: {{% {} %}} is missing", open_tag_.text,
                            open_tag_.line, fmt::join(ends, " %} or {% ")));
    }
    return statements;
  }

  static ExpressionPtr constant(const Token& data) {
    return std::make_unique<Expression>(
        Expression{data.line, Constant{Value::text(data.text, kTemplate)}});
  }

  Statement parse_tag() {
    const Nesting nesting = nest(tag_depth_, kMaxTagNesting, "tags ");
    if (current().kind != Token::Kind::name) fail_expected("the name of a tag");
    const Token opening = take();
    for (const Tag& tag : kTags) {
      if (tag.name != opening.text) continue;
      const Token outer = std::exchange(open_tag_, opening);
      Statement statement = (this->*tag.parse)(opening.line);
      open_tag_ = outer;
      return statement;
    }
    throw SyntaxFailure(opening.line,
                        fmt::format("the tag {{% {} %}} is not supported here", opening.text));
  }

  // Parses the body of a tag, up to one of `ends`.
  Statements parse_body(Ends ends) {
    take_if(":");
    expect(Token::Kind::block_end);
    return parse_until(ends);
  }
  Block parse_block_and_end(std::string_view end, const std::vector<std::string>& parameters = {}) {
    Block block = in_scope([&] { return parse_body({end}); }, parameters);
    take();
    return block;
  }

  // ---- Assignments

  Target parse_target(bool with_namespace) {
    Target tuple;
    bool is_tuple = false;
    do {
      const bool ends = current().is_name("in") || current().is(")");
      if (is_tuple && ends) break;
      tuple.parts.push_back(parse_target_part(with_namespace));
      is_tuple = is_tuple || current().is(",");
    } while (take_if(","));
    if (is_tuple) return tuple;
    Target single = std::move(tuple.parts.front());
    return single;
  }

  Target parse_target_part(bool with_namespace) {
    if (take_if("(")) {
      Target inner = parse_target(false);
      expect(")");
      return inner;
    }
    Target target;
    target.name = expect_assignable();
    if (with_namespace && take_if(".")) {
      target.attribute = expect_name();
    } else if (target.name == "loop" && loops_ > 0) {
      fail_here("an assignment to \"loop\" within a loop");
    }
    return target;
  }

  std::string expect_assignable() {
    for (const char* constant : {"true", "True", "false", "False", "none", "None"}) {
      if (current().is_name(constant)) fail_here(fmt::format("an assignment to {}", constant));
    }
    return expect_name();
  }

  // Collects all names of a target.
  static void collect(const Target& target, std::vector<std::string>& names) {
    if (target.parts.empty()) names.push_back(target.name);
    for (const Target& part : target.parts) collect(part, names);
  }

  void note_stores(const Target& target) {
    for (const Target& part : target.parts) note_stores(part);
    if (!target.parts.empty()) return;
    if (target.attribute.empty()) {
      scope_->store(target.name);
    } else {
      scope_->load(target.name);
    }
  }

  Statement parse_set(int line) {
    Target target = parse_target(true);
    if (take_if("=")) {
      ExpressionPtr value = parse_tuple();
      note_stores(target);
      return {line, Assignment{std::move(target), std::move(value)}};
    }
    note_stores(target);
    ExpressionPtr filters = parse_filters(nullptr);
    return {line,
            BlockAssignment{std::move(target), std::move(filters), parse_block_and_end("endset")}};
  }

  Statement parse_with(int line) {
    With with;
    std::vector<std::string> names;
    while (current().kind != Token::Kind::block_end) {
      if (!with.assignments.empty()) expect(",");
      Target target = parse_target_part(false);
      collect(target, names);
      expect("=");
      with.assignments.emplace_back(std::move(target), parse_expression());
    }
    with.body = parse_block_and_end("endwith", names);
    return {line, std::move(with)};
  }

  // ---- Control

  Statement parse_if(int line) {
    If node;
    ++scope_->branches;
    do {
      ExpressionPtr condition = parse_tuple(false);
      node.branches.emplace_back(std::move(condition), parse_body({"elif", "else", "endif"}));
    } while (take_name_if("elif"));
    if (take().text == "else") {
      node.otherwise = parse_body({"endif"});
      take();
    }
    --scope_->branches;
    return {line, std::move(node)};
  }

  Statement parse_for(int line) {
    For node;
    ++loops_;
    node.target = parse_target(false);
    if (!take_name_if("in")) fail_expected("\"in\"");
    node.items = parse_tuple(false);
    std::vector<std::string> names;
    names.emplace_back("loop");  // of an initialiser list GCC 14 warns wrongly
    collect(node.target, names);
    if (take_name_if("if")) {
      in_scope(
          [&]() -> Statements {
            node.condition = parse_expression();
            return {};
          },
          names);
    }
    if (current().is_name("recursive")) fail_here("a recursive loop is not supported");
    const bool outer = std::exchange(in_loop_, true);
    node.body = in_scope([&] { return parse_body({"else", "endfor"}); }, names);
    in_loop_ = outer;
    if (take().text == "else") node.otherwise = parse_block_and_end("endfor");
    --loops_;
    return {line, std::move(node)};
  }

  Statement parse_break(int line) { return loop_control(line, true); }
  Statement parse_continue(int line) { return loop_control(line, false); }
  Statement loop_control(int line, bool is_break) {
    if (!in_loop_) {
      throw SyntaxFailure(
          line, fmt::format("{{% {} %}} outside of a loop", is_break ? "break" : "continue"));
    }
    return {line, LoopControl{is_break}};
  }

  // ---- Macros and blocks that capture what is written in them

  // Parses the parameters. Their defaults are read within the macro, and so is `caller`.
  void parse_parameters(MacroBody& macro) {
    expect("(");
    while (!current().is(")")) {
      MacroBody::Parameter parameter;
      parameter.name = expect_assignable();
      scope_->load(parameter.name);
      const bool has_default = take_if("=");
      if (has_default) {
        parameter.otherwise = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().otherwise != nullptr) {
        fail_here("a parameter without a default behind one with a default");
      }
      if (parameter.name == "caller") fail_here("a parameter named \"caller\"");
      macro.parameters.push_back(std::move(parameter));
      if (!take_if(",")) break;
    }
    expect(")");
  }

  // Parses the parameters, then what `between` reads in the tag, then the body.
  template <typename Between>
  void parse_macro(MacroBody& macro, std::string_view end, const Between& between) {
    const bool outer_loop = std::exchange(in_loop_, false);
    macro.body = in_scope([&] {
      scope_->load("caller");
      if (current().is("(")) parse_parameters(macro);
      ScopeNames* const inner = scope_;
      scope_ = inner->outer;
      between();
      scope_ = inner;
      macros_.push_back(&macro);
      Statements body = parse_body({end});
      macros_.pop_back();
      return body;
    });
    take();
    in_loop_ = outer_loop;
  }

  Statement parse_macro(int line) {
    auto macro = std::make_unique<MacroBody>();
    macro->name = expect_assignable();
    scope_->store(macro->name);
    if (!current().is("(")) fail_expected("\"(\"");
    parse_macro(*macro, "endmacro", [] {});
    return {line, MacroDefinition{std::move(macro)}};
  }

  Statement parse_call(int line) {
    auto caller = std::make_unique<MacroBody>();
    caller->name = "caller";
    ExpressionPtr call;
    parse_macro(*caller, "endcall", [&] {
      call = parse_expression();
      if (!std::holds_alternative<Call>(call->node)) fail_here("{% call %} without a call");
    });
    return {line, CallBlock{std::move(call), std::move(caller)}};
  }

  Statement parse_filter_block(int line) {
    ExpressionPtr filters = parse_filters(parse_filter(nullptr));
    return {line, FilterBlock{std::move(filters), parse_block_and_end("endfilter")}};
  }

  Statement parse_generation(int line) {
    const bool outer = std::exchange(in_loop_, false);
    GenerationBlock block{parse_block_and_end("endgeneration")};
    in_loop_ = outer;
    return {line, std::move(block)};
  }

  std::deque<ScopeNames> scopes_;   // of the whole template
  ScopeNames* scope_ = nullptr;     // the innermost
  std::vector<MacroBody*> macros_;  // enclosing the current place
  Token open_tag_;                  // the innermost
  int tag_depth_ = 0;
  int loops_ = 0;         // enclosing the current place, across macros and blocks
  bool in_loop_ = false;  // break and continue are allowed
};

const Parser::Tag Parser::kTags[10] = {
    {"set", &Parser::parse_set},
    {"if", &Parser::parse_if},
    {"for", &Parser::parse_for},
    {"break", &Parser::parse_break},
    {"continue", &Parser::parse_continue},
    {"with", &Parser::parse_with},
    {"macro", &Parser::parse_macro},
    {"call", &Parser::parse_call},
    {"filter", &Parser::parse_filter_block},
    {"generation", &Parser::parse_generation},
};

}  // namespace

Block parse(std::vector<Token> tokens) {
  return Parser(std::move(tokens)).parse_template();
}

}  // namespace jackscrew::jinja

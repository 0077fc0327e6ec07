//! Prompts and answer lengths of LongBench's datasets, as its authors publish them
//! (`dataset2prompt.json`, `dataset2maxlen.json`; MIT licence, `quality/src/longbench/LICENSE`),
//! and the metric of each. Those whose metric cuts Chinese text into words are left out.

use crate::score::Metric;

/// A dataset of LongBench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dataset {
    /// Its name in rows.
    pub name: &'static str,
    /// The prompt, with `{context}` once and `{input}` in the place of the question.
    pub prompt: &'static str,
    /// Tokens of the answer, at most.
    pub answer_tokens: usize,
    /// Metric of answers.
    pub metric: Metric,
    /// Whether only the first line of an answer counts.
    pub first_line: bool,
    /// Whether a chat template surrounds the prompt: not where the answer continues examples or
    /// code.
    pub uses_template: bool,
}

/// Questions with four choices: LongBench v2, whose answer its authors look for as
/// `The correct answer is (A)`.
pub const CHOICES: Dataset = Dataset {
    name: "longbench_v2",
    prompt: "Please read the following text and answer the question below.\n\n<text>\n{context}\n</text>\n\nWhat is the correct \
              answer to this question: {input}\n\nFormat your response as follows: \"The correct answer is (insert answer \
              here)\".",
    answer_tokens: 128,
    metric: Metric::MatchPart,
    first_line: false,
    uses_template: true,
};

/// All that can be scored here.
pub const DATASETS: [Dataset; 17] = [
    Dataset {
        name: "narrativeqa",
        prompt: "You are given a story, which can be either a novel or a movie script, and a question. Answer the question \
                  asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\nStory: \
                  {context}\n\nNow, answer the question based on the story asconcisely as you can, using a single phrase if \
                  possible. Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
        answer_tokens: 128,
        metric: Metric::QaF1,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "qasper",
        prompt: "You are given a scientific article and a question. Answer the question as concisely as you can, using a single \
                  phrase or sentence if possible. If the question cannot be answered based on the information in the article, \
                  write \"unanswerable\". If the question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do \
                  not provide any explanation.\n\nArticle: {context}\n\n Answer the question based on the above article as \
                  concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based \
                  on the information in the article, write \"unanswerable\". If the question is a yes/no question, answer \
                  \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
        answer_tokens: 128,
        metric: Metric::QaF1,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "multifieldqa_en",
        prompt: "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following question based on the \
                  above text, only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
        answer_tokens: 64,
        metric: Metric::QaF1,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "hotpotqa",
        prompt: "Answer the question based on the given passages. Only give me the answer and do not output any other \
                  words.\n\nThe following are given passages.\n{context}\n\nAnswer the question based on the given passages. \
                  Only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
        answer_tokens: 32,
        metric: Metric::QaF1,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "2wikimqa",
        prompt: "Answer the question based on the given passages. Only give me the answer and do not output any other \
                  words.\n\nThe following are given passages.\n{context}\n\nAnswer the question based on the given passages. \
                  Only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
        answer_tokens: 32,
        metric: Metric::QaF1,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "musique",
        prompt: "Answer the question based on the given passages. Only give me the answer and do not output any other \
                  words.\n\nThe following are given passages.\n{context}\n\nAnswer the question based on the given passages. \
                  Only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
        answer_tokens: 32,
        metric: Metric::QaF1,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "gov_report",
        prompt: "You are given a report by a government agency. Write a one-page summary of the \
                  report.\n\nReport:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
        answer_tokens: 512,
        metric: Metric::RougeL,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "qmsum",
        prompt: "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one \
                  or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based on the above meeting transcript in \
                  one or more sentences.\n\nQuery: {input}\nAnswer:",
        answer_tokens: 512,
        metric: Metric::RougeL,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "multi_news",
        prompt: "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\nNow, write \
                  a one-page summary of all the news.\n\nSummary:",
        answer_tokens: 512,
        metric: Metric::RougeL,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "trec",
        prompt: "Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}",
        answer_tokens: 64,
        metric: Metric::Classification,
        first_line: true,
        uses_template: false,
    },
    Dataset {
        name: "triviaqa",
        prompt: "Answer the question based on the given passage. Only give me the answer and do not output any other words. The \
                  following are some examples.\n\n{context}\n\n{input}",
        answer_tokens: 32,
        metric: Metric::QaF1,
        first_line: true,
        uses_template: false,
    },
    Dataset {
        name: "samsum",
        prompt: "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n{input}",
        answer_tokens: 128,
        metric: Metric::RougeL,
        first_line: true,
        uses_template: false,
    },
    Dataset {
        name: "lsht",
        prompt: "请判断给定新闻的类别，下面是一些例子。\n\n{context}\n{input}",
        answer_tokens: 64,
        metric: Metric::Classification,
        first_line: true,
        uses_template: false,
    },
    Dataset {
        name: "passage_count",
        prompt: "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read \
                  these paragraphs and determine how many unique paragraphs there are after removing duplicates. In other words, \
                  how many non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the final count of unique \
                  paragraphs after removing duplicates. The output format should only contain the number, such as 1, 2, 3, and \
                  so on.\n\nThe final answer is: ",
        answer_tokens: 32,
        metric: Metric::Count,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "passage_retrieval_en",
        prompt: "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract \
                  is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\nPlease enter the number of the paragraph \
                  that the abstract is from. The answer format must be like \"Paragraph 1\", \"Paragraph 2\", etc.\n\nThe answer \
                  is: ",
        answer_tokens: 32,
        metric: Metric::Retrieval,
        first_line: false,
        uses_template: true,
    },
    Dataset {
        name: "lcc",
        prompt: "Please complete the code given below. \n{context}Next line of code:\n",
        answer_tokens: 64,
        metric: Metric::CodeSimilarity,
        first_line: false,
        uses_template: false,
    },
    Dataset {
        name: "repobench-p",
        prompt: "Please complete the code given below. \n{context}{input}Next line of code:\n",
        answer_tokens: 64,
        metric: Metric::CodeSimilarity,
        first_line: false,
        uses_template: false,
    },
];

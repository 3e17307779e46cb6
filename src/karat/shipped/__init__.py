"""Tasks that come with karat: `karat run eval/question_answering/demo`."""

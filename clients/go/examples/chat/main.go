// Command chat asks a question, and shows the answer with what it cost.
package main

import (
	"context"
	"fmt"
	"log"

	headrace "github.com/headrace/headrace/clients/go"
)

func main() {
	client, err := headrace.New("127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	request := headrace.NewRequest("default",
		headrace.Chat(headrace.System("Be brief."), headrace.User("What is the capital of France?")),
		headrace.MaxOutputTokens(32),
		headrace.Temperature(0),
	)
	answer, err := client.Generate(context.Background(), request).Collect()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Text())
	fmt.Println("ended with", answer.Choices[0].FinishReason, "in model", answer.Model)
	fmt.Println(answer.Usage.GetOutputTokenCount(), "tokens, the first after", answer.Timing.GetTimeToFirstToken().AsDuration())
}

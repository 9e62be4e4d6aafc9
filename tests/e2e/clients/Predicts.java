import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;

/** java Predicts.java URL BODY REPLY COUNT: so many POSTs of a file by java.net.http with its defaults. */
class Predicts {
    public static void main(String[] arguments) throws Exception {
        var body = HttpRequest.BodyPublishers.ofFile(Path.of(arguments[1]));
        var wanted = Files.readString(Path.of(arguments[2]));
        var request = HttpRequest.newBuilder(URI.create(arguments[0])).POST(body).build();
        var client = HttpClient.newHttpClient();
        for (int n = 0; n < Integer.parseInt(arguments[3]); n++) {
            var reply = client.send(request, HttpResponse.BodyHandlers.ofString());
            if (reply.statusCode() != 200 || !reply.body().equals(wanted)) {
                throw new AssertionError(n + ": " + reply.statusCode() + " " + reply.body());
            }
        }
        System.out.println("done");
    }
}
